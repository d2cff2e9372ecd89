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
 * own and prints nothing. One exception: a communicator that is used with qrd_all_reduce_on_stream
 * has one thread from the first such call to qrd_comm_finalize. It sleeps; it is there to let the
 * streams go on should the daemon die. It takes no signals and calls no GPU function.
 *   7. Structs begin with struct_bytes = sizeof(the struct); use the *_INIT macros. Fields are only
 *      ever added at the end.
 *
 * GPUs: see "Device communicators" below. libqrd links no GPU library: it loads libcuda.so.1 or
 * libamdhip64.so when the first communicator with a device is made, and never without one.
 *
 * Not supported yet: collectives other than all-reduce (with or without RMSNorm).
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
/* QRD_ALGORITHM_LIBRARY: the daemon's vendor library (RCCL, NCCL), on GPUs only. */
typedef enum qrd_algorithm QRD_INT_ENUM {
  QRD_ONE_SHOT = 1,
  QRD_TWO_SHOT = 2,
  QRD_ALGORITHM_LIBRARY = 3
} qrd_algorithm;
/* FP8 formats of qrd_rms_norm.out8: largest values 448 and 240. */
typedef enum qrd_quant QRD_INT_ENUM {
  QRD_QUANT_NONE = 0,
  QRD_E4M3FN = 1,
  QRD_E4M3FNUZ = 2
} qrd_quant;

/* Who has which rows of qrd_rms_norm.residual and residual_out, see qrd_owned_rows. */
typedef enum qrd_residual_layout QRD_INT_ENUM {
  QRD_RESIDUAL_FULL = 0,   /* every rank has all rows */
  QRD_RESIDUAL_SHARDED = 1 /* every rank has its own rows only */
} qrd_residual_layout;

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
  /* How long to wait for the daemon and for the other ranks, at most 3600000. 0: the daemon's
   * default (30 s). */
  uint32_t timeout_ms;
  /* Non-zero (the default): create the communicator if there is none. */
  int create_if_absent;
  /* Where this rank's tensors are. NULL (the default): host memory. "current": the device of the
   * calling thread's current CUDA context or HIP device. Else a device by UUID ("GPU-" and 36
   * characters, as nvidia-smi -L shows it) or PCI address ("0000:1b:00.0"); never an ordinal, which
   * means different devices in different processes. All ranks of a group name a device, or none
   * does; several may name the same. */
  const char* device;
} qrd_comm_config;
#define QRD_COMM_CONFIG_INIT \
  { sizeof(qrd_comm_config), NULL, NULL, 0, 0, NULL, 0, 1, NULL }

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
  uint64_t nonfinite_count; /* NaN or Inf elements in the result; with RMSNorm of the
                             * sum, before the residual */
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

/* Memory that the daemon can reach without a copy: page-aligned, zeroed, 1 byte or more. Of a
 * communicator with a device: memory of that device, aligned to 256 bytes, not zeroed.
 * QRD_RESOURCE_EXHAUSTED names the bound. The pointer stays valid until qrd_mem_free or
 * qrd_comm_finalize, also after the daemon died. */
QRD_API qrd_status qrd_mem_alloc(qrd_comm_t comm, size_t bytes, void** ptr);
/* QRD_FAILED_PRECONDITION while an operation uses the memory. Works after the daemon died, too. */
QRD_API qrd_status qrd_mem_free(qrd_comm_t comm, void* ptr);
/* Prepares any other memory of the caller for use: reserves its staging copy now, so that
 * operations on [ptr, ptr + bytes) allocate nothing. They still copy. Ranges may not overlap. */
QRD_API qrd_status qrd_mem_register(qrd_comm_t comm, void* ptr, size_t bytes);
QRD_API qrd_status qrd_mem_deregister(qrd_comm_t comm, void* ptr);
/* Gives the daemon access to [ptr, ptr + bytes) of the caller's own device memory, so that
 * operations on it need no copy. The allocation is exported to the daemon by its IPC handle, which
 * works for memory of cudaMalloc and hipMalloc. QRD_UNIMPLEMENTED, with a text that says why and
 * what to do, for memory that cannot be exported: that of the virtual memory API (PyTorch's
 * expandable_segments) and of pools (cudaMallocAsync); operations on it are staged as before.
 * Ranges may not overlap others of this communicator. Release it before the memory is freed. */
QRD_API qrd_status qrd_mem_import(qrd_comm_t comm, void* ptr, size_t bytes);
/* QRD_FAILED_PRECONDITION while an operation uses the memory. */
QRD_API qrd_status qrd_mem_release(qrd_comm_t comm, void* ptr);

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

/* All-reduce + residual + RMSNorm (+ FP8), one operation: residual_out = sum + residual, then the
 * RMSNorm of residual_out, then, with quant, FP8 codes and their scales. Tensors are row-major; D
 * is the operation's dtype, QRD_FP16 or QRD_BF16. Results are those of the separate steps bit for
 * bit, the same on all ranks (if residual and weight are). A row with NaN or Inf has NaN scales.
 * Aligned to 16 bytes; out8 to 8, scales to 4. Only residual_out and residual, and input and out or
 * mirror, may share their memory. All ranks pass the same options.
 *
 * residual_layout QRD_RESIDUAL_SHARDED: residual and residual_out are [own rows, hidden], the rows
 * that qrd_owned_rows names (a rank without rows passes NULL or anything). A row's owner reduces
 * it, adds the residual, normalises and quantizes, and every rank gets all rows of out, or of out8,
 * scales and mirror: less memory, and the norm is not repeated on every rank. Results cross links
 * as they are: fewer bytes than QRD_RESIDUAL_FULL without a codec and with FP8 without mirror, more
 * bytes with a codec. The algorithm is two_shot whatever the policy says, weight is the owner's.
 * Without a codec the same bits as QRD_RESIDUAL_FULL; with one the sums are quantized once, on the
 * way to the owner, not twice. */
typedef struct qrd_rms_norm {
  size_t struct_bytes;
  uint64_t tokens;        /* rows, from 1 */
  uint32_t hidden;        /* elements of a row: 8 to 16384, a multiple of 8 */
  float eps;              /* from 2^-64 */
  const void* residual;   /* [tokens, hidden] of D; NULL (on all ranks): 0 */
  const void* weight;     /* [hidden] of weight_dtype */
  qrd_dtype weight_dtype; /* D or QRD_FP32 */
  int gemma;              /* non-zero: the gain is 1 + weight */
  void* residual_out;     /* [tokens, hidden] of D */
  void* out;              /* [tokens, hidden] of D; NULL with quant */
  qrd_quant quant;
  uint32_t scale_group; /* elements of a scale: 0 (the whole row) or 128 */
  float divisor;        /* a scale is the largest value of its elements over this; 0: the format's
                         * largest value */
  uint8_t* out8;        /* [tokens, hidden], with quant */
  float* scales;        /* [tokens], or [tokens, ceil(hidden / 128)] with scale_group; with quant */
  void* mirror;         /* what out would be, [tokens, hidden] of D; NULL: not wanted; with quant */
  qrd_residual_layout residual_layout;
} qrd_rms_norm;
#define QRD_RMS_NORM_INIT                                                                         \
  {                                                                                               \
    sizeof(qrd_rms_norm), 0, 0, 1e-6f, NULL, NULL, QRD_BF16, 0, NULL, NULL, QRD_QUANT_NONE, 0, 0, \
        NULL, NULL, NULL, QRD_RESIDUAL_FULL                                                       \
  }
/* The rows of [tokens, hidden] tensors that this rank has with QRD_RESIDUAL_SHARDED: *count rows
 * from row *first on; neighbours, tokens / world size of them, and one more on the first ranks if
 * that is not whole. tokens from 1. Thread safety: any thread. */
QRD_API qrd_status qrd_owned_rows(qrd_comm_t comm, uint64_t tokens, uint64_t* first,
                                  uint64_t* count);

/* Posts the operation on input, [tokens, hidden] of dtype. As qrd_all_reduce: any memory, copied if
 * it is not the communicator's. */
QRD_API qrd_status qrd_all_reduce_rms_norm(qrd_comm_t comm, const void* input, qrd_dtype dtype,
                                           const qrd_rms_norm* norm, qrd_operation* operation);

/* Device communicators (qrd_comm_config.device)
 *
 * Tensors are on the device; a pointer to host memory is QRD_INVALID_ARGUMENT (managed memory is
 * staged). Memory of qrd_mem_alloc and qrd_mem_import is used where it is, any other device memory
 * is staged: copied on the device, into memory of the daemon and back.
 *
 * qrd_all_reduce and qrd_wait work as with host memory. They know nothing of streams: what writes
 * the input must be complete before qrd_all_reduce, the output is complete after qrd_wait.
 *
 * Environment: QRD_GPU_DRIVER names another driver library than libcuda.so.1 or libamdhip64.so.
 * QRD_GPU_GATE chooses how streams wait: "batch" or "memory" (stream memory operations, in one call
 * or one by one) or "kernel" (a kernel of one thread, which spins with a bound); the default is the
 * first of them that works on the device. */

/* output = sum (or average) of all ranks' inputs, in the order of a stream: the operation begins
 * when the work before it on the stream is done, and work after it sees the output. Returns at once
 * and waits for nothing. `stream` is a cudaStream_t, CUstream or hipStream_t of the communicator's
 * device; NULL is the (legacy) default stream; for the default stream of a thread pass
 * cudaStreamPerThread. Arguments as for qrd_all_reduce.
 *
 * Order: operations of a communicator happen in the order of the calls, whatever their streams: an
 * operation on another stream than the one before waits for that one. All ranks must have the same
 * order.
 *
 * Graphs: on a stream that is being captured the operation becomes a part of the graph, which may
 * be launched any number of times, each time with the data that is there then; the operation is
 * matched with the other ranks' each time. Between operations in a graph, and between those of
 * graphs and others, the order is the program's: at most one may be on its way at a time. The
 * memory must stay allocated (and imported) for as long as the graph is launched, and
 * qrd_comm_finalize must come after the last launch. A captured operation keeps one of the
 * daemon's stream_entries_per_session until then; operations on the same tensors with the same
 * count, dtype and op share one. Nothing of the communicator synchronises a device or allocates
 * while operations are on their way, except that the first call and calls that need more staging
 * memory than any before map memory of the daemon: make one call of the largest size first if that
 * must not happen in a capture.
 *
 * Failures (a lost rank, a timeout, different operations, ...) cannot be returned here: the stream
 * goes on, the output is void, and qrd_comm_async_error reports it. After the first failure this
 * function, and qrd_all_reduce, return it, too. Should the daemon die or get stuck, the streams are
 * released within its operation timeout plus 10 s, at once if it died.
 *
 * QRD_RESOURCE_EXHAUSTED: stream_entries_per_session operations are on streams or in graphs. */
QRD_API qrd_status qrd_all_reduce_on_stream(qrd_comm_t comm, const void* input, void* output,
                                            size_t count, qrd_dtype dtype, qrd_reduce_op op,
                                            void* stream);
/* The same with RMSNorm. All tensors must be in memory of qrd_mem_alloc or qrd_mem_import:
 * QRD_FAILED_PRECONDITION names one that is not. */
QRD_API qrd_status qrd_all_reduce_rms_norm_on_stream(qrd_comm_t comm, const void* input,
                                                     qrd_dtype dtype, const qrd_rms_norm* norm,
                                                     void* stream);
/* *status: the first failure of an operation on a stream, or the loss of the daemon (text in
 * qrd_last_error); QRD_OK if there is none so far. It stays. Look after the stream is synchronised
 * and before its results are used. stats (may be NULL) is the failed operation's. Never blocks. */
QRD_API qrd_status qrd_comm_async_error(qrd_comm_t comm, qrd_status* status, qrd_op_stats* stats);
/* How many operations on streams have ended (each launch of a graph counts anew), and what happened
 * to the one that ended last (may be NULL; sequence is 0 if none has). The daemon counts an
 * operation a little after the stream went on. */
QRD_API qrd_status qrd_stream_stats(qrd_comm_t comm, uint64_t* operations, qrd_op_stats* last);

#ifdef __cplusplus
}
#endif
#endif /* QRD_QRD_H_ */
