// SPDX-License-Identifier: Apache-2.0
// The C functions of libqrd: NULL handles, forked children and exceptions end here.
#include <memory>
#include <new>
#include <string>

#include "client/core/error.h"
#include "client/src/arguments.h"
#include "client/src/comm.h"
#include "client/src/rms_norm_call.h"
#include "client/src/version.h"
#include "qrd/qrd.h"

using qrd::client::AllReduceCall;
using qrd::client::AttachOptions;
using qrd::client::CheckConfig;
using qrd::client::CheckReason;
using qrd::client::CheckRmsNorm;
using qrd::client::Comm;
using qrd::client::Fail;
using qrd::client::OwnedRows;
using qrd::client::OwnedRowsOf;
using qrd::client::RmsNormCall;

namespace {

// No exception passes the C boundary. The library throws none; the standard library may, for
// memory.
template <typename Body>
qrd_status Guard(Body&& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Fail(QRD_RESOURCE_EXHAUSTED, "memory of the process: an allocation failed");
  } catch (const std::exception& e) {
    return Fail(QRD_INTERNAL, "unexpected exception: %s", e.what());
  }
}

qrd_status CheckComm(qrd_comm_t handle, Comm** comm) {
  if (handle == nullptr) return Fail(QRD_INVALID_ARGUMENT, "comm: NULL");
  *comm = reinterpret_cast<Comm*>(handle);
  if ((*comm)->InForkedChild()) {
    return Fail(QRD_FAILED_PRECONDITION,
                "comm: it belongs to the parent process; a child after fork must make its own");
  }
  return QRD_OK;
}

template <typename Body>
qrd_status WithComm(qrd_comm_t handle, Body&& body) {
  Comm* comm = nullptr;
  if (qrd_status status = CheckComm(handle, &comm); status != QRD_OK) return status;
  return Guard([&] { return body(*comm); });
}

qrd_status NullOutput(const char* name) { return Fail(QRD_INVALID_ARGUMENT, "%s: NULL", name); }

}  // namespace

const char* qrd_version(void) { return qrd::client::Version(); }
const char* qrd_status_string(qrd_status status) { return qrd::client::StatusName(status); }
const char* qrd_last_error(void) { return qrd::client::LastError(); }

qrd_status qrd_comm_init(const qrd_comm_config* config, qrd_comm_t* comm) {
  if (comm == nullptr) return NullOutput("comm");
  return Guard([&] {
    AttachOptions options;
    if (qrd_status status = CheckConfig(config, &options); status != QRD_OK) return status;
    std::unique_ptr<Comm> made;
    if (qrd_status status = Comm::Attach(options, &made); status != QRD_OK) return status;
    *comm = reinterpret_cast<qrd_comm_t>(made.release());
    return QRD_OK;
  });
}

qrd_status qrd_comm_finalize(qrd_comm_t handle) {
  if (handle == nullptr) return QRD_OK;
  Comm* comm = nullptr;
  if (qrd_status status = CheckComm(handle, &comm); status != QRD_OK) return status;
  delete comm;
  return QRD_OK;
}

qrd_status qrd_comm_abort(qrd_comm_t comm, const char* reason) {
  return WithComm(comm, [&](Comm& c) {
    std::string text;
    if (qrd_status status = CheckReason(reason, &text); status != QRD_OK) return status;
    return c.Abort(text);
  });
}

qrd_status qrd_comm_rank(qrd_comm_t comm, uint32_t* rank, uint32_t* world_size) {
  return WithComm(comm, [&](Comm& c) {
    if (rank == nullptr) return NullOutput("rank");
    if (world_size == nullptr) return NullOutput("world_size");
    *rank = c.rank();
    *world_size = c.world_size();
    return QRD_OK;
  });
}

qrd_status qrd_mem_alloc(qrd_comm_t comm, size_t bytes, void** ptr) {
  return WithComm(
      comm, [&](Comm& c) { return ptr == nullptr ? NullOutput("ptr") : c.MemAlloc(bytes, ptr); });
}

qrd_status qrd_mem_free(qrd_comm_t comm, void* ptr) {
  return WithComm(comm, [&](Comm& c) { return c.MemFree(ptr); });
}

qrd_status qrd_mem_register(qrd_comm_t comm, void* ptr, size_t bytes) {
  return WithComm(comm, [&](Comm& c) { return c.MemRegister(ptr, bytes); });
}

qrd_status qrd_mem_deregister(qrd_comm_t comm, void* ptr) {
  return WithComm(comm, [&](Comm& c) { return c.MemDeregister(ptr); });
}

qrd_status qrd_mem_import(qrd_comm_t comm, void* ptr, size_t bytes) {
  return WithComm(comm, [&](Comm& c) { return c.MemImport(ptr, bytes); });
}

qrd_status qrd_mem_release(qrd_comm_t comm, void* ptr) {
  return WithComm(comm, [&](Comm& c) { return c.MemRelease(ptr); });
}

qrd_status qrd_all_reduce(qrd_comm_t comm, const void* input, void* output, size_t count,
                          qrd_dtype dtype, qrd_reduce_op op, qrd_operation* operation) {
  return WithComm(comm, [&](Comm& c) {
    if (operation == nullptr) return NullOutput("operation");
    return c.AllReduce(AllReduceCall{input, output, count, dtype, op}, operation);
  });
}

qrd_status qrd_owned_rows(qrd_comm_t comm, uint64_t tokens, uint64_t* first, uint64_t* count) {
  return WithComm(comm, [&](Comm& c) {
    if (first == nullptr) return NullOutput("first");
    if (count == nullptr) return NullOutput("count");
    if (tokens < 1) return Fail(QRD_INVALID_ARGUMENT, "tokens: 0, want at least 1");
    const OwnedRows rows = OwnedRowsOf(tokens, {c.rank(), c.world_size()});
    *first = rows.first;
    *count = rows.count;
    return QRD_OK;
  });
}

qrd_status qrd_all_reduce_rms_norm(qrd_comm_t comm, const void* input, qrd_dtype dtype,
                                   const qrd_rms_norm* norm, qrd_operation* operation) {
  return WithComm(comm, [&](Comm& c) {
    if (operation == nullptr) return NullOutput("operation");
    RmsNormCall call;
    const qrd_status status = CheckRmsNorm(input, dtype, norm, {c.rank(), c.world_size()}, &call);
    return status == QRD_OK ? c.AllReduceRmsNorm(call, operation) : status;
  });
}

qrd_status qrd_all_reduce_rms_norm_on_stream(qrd_comm_t comm, const void* input, qrd_dtype dtype,
                                             const qrd_rms_norm* norm, void* stream) {
  return WithComm(comm, [&](Comm& c) {
    RmsNormCall call;
    const qrd_status status = CheckRmsNorm(input, dtype, norm, {c.rank(), c.world_size()}, &call);
    return status == QRD_OK ? c.AllReduceRmsNormOnStream(call, stream) : status;
  });
}

qrd_status qrd_wait(qrd_comm_t comm, qrd_operation operation, uint32_t timeout_ms,
                    qrd_op_stats* stats) {
  return WithComm(comm, [&](Comm& c) { return c.Wait(operation, timeout_ms, stats); });
}

qrd_status qrd_test(qrd_comm_t comm, qrd_operation operation, qrd_op_stats* stats) {
  return WithComm(comm, [&](Comm& c) { return c.Test(operation, stats); });
}

qrd_status qrd_all_reduce_on_stream(qrd_comm_t comm, const void* input, void* output, size_t count,
                                    qrd_dtype dtype, qrd_reduce_op op, void* stream) {
  return WithComm(comm, [&](Comm& c) {
    return c.AllReduceOnStream(AllReduceCall{input, output, count, dtype, op}, stream);
  });
}

qrd_status qrd_comm_async_error(qrd_comm_t comm, qrd_status* status, qrd_op_stats* stats) {
  return WithComm(comm, [&](Comm& c) {
    return status == nullptr ? NullOutput("status") : c.AsyncError(status, stats);
  });
}

qrd_status qrd_stream_stats(qrd_comm_t comm, uint64_t* operations, qrd_op_stats* last) {
  return WithComm(comm, [&](Comm& c) {
    return operations == nullptr ? NullOutput("operations") : c.StreamStats(operations, last);
  });
}
