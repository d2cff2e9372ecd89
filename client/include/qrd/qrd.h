/* SPDX-License-Identifier: Apache-2.0
 *
 * qrd client library: collective operations of one process through the node's qrd daemon.
 *
 * Conventions
 *   1. Every function that can fail returns a qrd_status; QRD_OK is 0. qrd_last_error() gives the
 * text of the calling thread's last failure: it names the argument, its value and the bound.
 *   2. Output arguments are written only on success, unless a function says otherwise.
 *   3. A qrd_comm belongs to the process that made it (not to a child after fork). All functions on
 * one qrd_comm may be called from any thread at the same time, except qrd_comm_finalize, which must
 * be the last. Operations are matched between ranks in the order in which a rank posts them:
 * threads that post to one communicator must agree on an order among themselves.
 *   4. No function waits without a bound. Waiting functions take a timeout.
 *   5. Buffers stay the caller's. From qrd_all_reduce until its qrd_wait (or qrd_test) reports the
 * end, the input must not be changed and the output must not be read or written.
 *   6. The library starts no threads, installs no signal handlers, writes to no descriptor but its
 * own and prints nothing.
 *   7. Structs begin with struct_bytes = sizeof(the struct); use the *_INIT macros. Fields are only
 *      ever added at the end.
 *
 * Not supported yet: GPU memory and streams, collectives other than all-reduce, fused epilogues.
 */
#ifndef QRD_QRD_H_
#define QRD_QRD_H_

#include <stddef.h>
#include <stdint.h>

#if defined(QRD_BUILDING_LIBRARY)
#define QRD_API __attribute__((visibility("default")))
#else
#define QRD_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define QRD_VERSION_MAJOR 0
#define QRD_VERSION_MINOR 1
#define QRD_VERSION_PATCH 0

#define QRD_WORLD_SIZE_MAX 16

/* Enums are ints, for C++ too: a caller of another version may pass or get a number not named here.
 */
#ifdef __cplusplus
#define QRD_INT_ENUM : int
#else
#define QRD_INT_ENUM
#endif

/* Numbers never change. */
typedef enum qrd_status QRD_INT_ENUM {
  QRD_OK = 0,
  QRD_INVALID_ARGUMENT = 1,
  QRD_FAILED_PRECONDITION = 2,
  QRD_RESOURCE_EXHAUSTED = 3,
  QRD_UNAVAILABLE = 4,
  QRD_TIMEOUT = 5,
  QRD_MISMATCH = 6,
  QRD_PEER_LOST = 7,
  QRD_DAEMON_LOST = 8,
  QRD_ABORTED = 9,
  QRD_PERMISSION_DENIED = 10,
  QRD_NOT_FOUND = 11,
  QRD_ALREADY_EXISTS = 12,
  QRD_UNIMPLEMENTED = 13,
  QRD_INTERNAL = 14,
  QRD_IN_PROGRESS = 15
} qrd_status;

typedef enum qrd_dtype QRD_INT_ENUM { QRD_FP16 = 1, QRD_BF16 = 2, QRD_FP32 = 3 } qrd_dtype;
typedef enum qrd_reduce_op QRD_INT_ENUM { QRD_SUM = 1, QRD_AVG = 2 } qrd_reduce_op;

/* Wire format ids. The daemon's policy chooses; clients only see the choice in qrd_op_stats. */
typedef enum qrd_codec QRD_INT_ENUM {
  QRD_CODEC_NONE = 0,
  QRD_CODEC_FP8 = 1,
  QRD_CODEC_INT8 = 2,
  QRD_CODEC_INT6 = 3,
  QRD_CODEC_INT4 = 4,
  QRD_CODEC_FP4 = 5,
  QRD_CODEC_INT3 = 6,
  QRD_CODEC_LP4 = 7,
  QRD_CODEC_LP3 = 8,
  QRD_CODEC_LP3C = 9,
  QRD_CODEC_LP2 = 10
} qrd_codec;
typedef enum qrd_algorithm QRD_INT_ENUM { QRD_ONE_SHOT = 1, QRD_TWO_SHOT = 2 } qrd_algorithm;

typedef struct qrd_comm* qrd_comm_t;
/* Names a posted operation of one qrd_comm. Never 0. */
typedef uint64_t qrd_operation;

/* How to attach. */
typedef struct qrd_comm_config {
  size_t struct_bytes;
  /* Communicator name, 1 to 64 characters of [a-z0-9._-], the first a letter or digit. Required. */
  const char* communicator;
  /* The set of processes that this one belongs to; one process a rank. NULL: "default". */
  const char* group;
  /* 0 to world_size - 1. */
  uint32_t rank;
  /* 1 to QRD_WORLD_SIZE_MAX; the communicator's. */
  uint32_t world_size;
  /* Runtime directory of the daemon. NULL: $QRD_RUNTIME_DIRECTORY, else /run/qrd if it has an
   * attach socket, else $XDG_RUNTIME_DIR/qrd. */
  const char* runtime_directory;
  /* How long to wait for the daemon and for the other ranks. 0: the daemon's default (30 s). */
  uint32_t timeout_ms;
  /* Non-zero (the default): create the communicator if there is none. */
  int create_if_absent;
} qrd_comm_config;
#define QRD_COMM_CONFIG_INIT \
  { sizeof(qrd_comm_config), NULL, NULL, 0, 0, NULL, 0, 1 }

/* What happened to one operation. Times are CLOCK_MONOTONIC nanoseconds of the node. */
typedef struct qrd_op_stats {
  size_t struct_bytes;
  qrd_status status;
  qrd_codec codec;
  qrd_algorithm algorithm;
  uint64_t sequence;      /* counts this rank's operations from 1 */
  uint64_t payload_bytes; /* count * element size */
  uint64_t wire_bytes;    /* what one rank sends under the plan (on the host: would send) */
  uint64_t policy_generation;
  uint64_t first_post_ns;   /* the daemon saw the first rank's post */
  uint64_t ready_ns;        /* all ranks had posted */
  uint64_t start_ns;        /* a worker began */
  uint64_t end_ns;          /* the result was written */
  uint64_t nonfinite_count; /* NaN or Inf elements in the result */
  uint32_t rank_mask;       /* ranks to blame for a failure, bit r = rank r */
  int staged; /* non-zero if a buffer was copied because it is not from qrd_mem_alloc */
} qrd_op_stats;
#define QRD_OP_STATS_INIT \
  { sizeof(qrd_op_stats), QRD_OK, QRD_CODEC_NONE, QRD_TWO_SHOT, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* "0.1.0" */
QRD_API const char* qrd_version(void);
/* "MISMATCH" and so on; "UNKNOWN" for other numbers. Static storage. */
QRD_API const char* qrd_status_string(qrd_status status);
/* Text of this thread's last failure, "" if there was none. Valid until the thread's next qrd call.
 */
QRD_API const char* qrd_last_error(void);

/* Attaches and waits until every rank of the group has done so, at most timeout_ms (and a second
 * for the daemon's answer). QRD_TIMEOUT names the missing ranks; QRD_UNAVAILABLE: no daemon listens
 * at the socket (returned at once). After QRD_DAEMON_LOST: finalize, then the same call attaches
 * again. */
QRD_API qrd_status qrd_comm_init(const qrd_comm_config* config, qrd_comm_t* comm);
/* Ends the session and frees everything of it, qrd_mem_alloc memory too. Operations in flight are
 * given up (the other ranks get QRD_PEER_LOST), so wait for them first. NULL is allowed. */
QRD_API qrd_status qrd_comm_finalize(qrd_comm_t comm);
/* Fails every pending and later operation of the whole group with QRD_ABORTED and `reason` (may be
 * NULL, at most 128 bytes). The qrd_comm must still be finalized. May be called while another
 * thread waits. */
QRD_API qrd_status qrd_comm_abort(qrd_comm_t comm, const char* reason);
QRD_API qrd_status qrd_comm_rank(qrd_comm_t comm, uint32_t* rank, uint32_t* world_size);

/* Memory that the daemon can reach without a copy: page-aligned, zeroed, 1 byte or more.
 * QRD_RESOURCE_EXHAUSTED names the bound. The pointer stays valid until qrd_mem_free or
 * qrd_comm_finalize, also after the daemon died. */
QRD_API qrd_status qrd_mem_alloc(qrd_comm_t comm, size_t bytes, void** ptr);
/* QRD_FAILED_PRECONDITION while an operation uses the memory. Works after the daemon died, too. */
QRD_API qrd_status qrd_mem_free(qrd_comm_t comm, void* ptr);
/* Prepares any other memory of the caller for use: reserves its staging copy now, so that
 * operations on [ptr, ptr + bytes) allocate nothing. They still copy. Ranges may not overlap. */
QRD_API qrd_status qrd_mem_register(qrd_comm_t comm, void* ptr, size_t bytes);
QRD_API qrd_status qrd_mem_deregister(qrd_comm_t comm, void* ptr);

/* Posts output = sum (or average) of all ranks' inputs, count elements each, and returns at once.
 * input == output is allowed, any other overlap is QRD_INVALID_ARGUMENT. Pointers are aligned to
 * the element; count may be 0 (pointers may be NULL then). A buffer lies in one block of
 * qrd_mem_alloc memory or in none. Buffers outside qrd_mem_alloc memory are copied (see
 * qrd_op_stats.staged). QRD_RESOURCE_EXHAUSTED: too many operations in flight; nothing was posted:
 * wait for one, try again. Every posted operation must be waited for (or tested until done). */
QRD_API qrd_status qrd_all_reduce(qrd_comm_t comm, const void* input, void* output, size_t count,
                                  qrd_dtype dtype, qrd_reduce_op op, qrd_operation* operation);
/* Waits for the end and releases the operation; its result is the return value. timeout_ms 0: until
 * the daemon reports (it has a deadline for every operation and its death is noticed), or until it
 * has shown no sign of life for 10 s (stopped by a signal or a debugger). QRD_IN_PROGRESS after
 * either time: not released, wait again. QRD_NOT_FOUND: no such operation, or
 * released before (also by another thread that waited for it at the same time). stats may be NULL;
 * it is written whenever the operation ended, successfully or not. */
QRD_API qrd_status qrd_wait(qrd_comm_t comm, qrd_operation operation, uint32_t timeout_ms,
                            qrd_op_stats* stats);
/* As qrd_wait, but never blocks: QRD_IN_PROGRESS if it is not done. */
QRD_API qrd_status qrd_test(qrd_comm_t comm, qrd_operation operation, qrd_op_stats* stats);

#ifdef __cplusplus
}
#endif
#endif /* QRD_QRD_H_ */
