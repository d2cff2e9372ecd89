// SPDX-License-Identifier: Apache-2.0
// The C functions of libqrd.
#include "client/core/error.h"
#include "qrd/qrd.h"

using qrd::client::Fail;

namespace {

qrd_status Stub() { return Fail(QRD_UNIMPLEMENTED, "not written yet"); }

}  // namespace

const char* qrd_version(void) { return "0.1.0"; }
const char* qrd_status_string(qrd_status status) { return qrd::client::StatusName(status); }
const char* qrd_last_error(void) { return qrd::client::LastError(); }

qrd_status qrd_comm_init(const qrd_comm_config*, qrd_comm_t*) { return Stub(); }
qrd_status qrd_comm_finalize(qrd_comm_t) { return Stub(); }
qrd_status qrd_comm_abort(qrd_comm_t, const char*) { return Stub(); }
qrd_status qrd_comm_rank(qrd_comm_t, uint32_t*, uint32_t*) { return Stub(); }
qrd_status qrd_mem_alloc(qrd_comm_t, size_t, void**) { return Stub(); }
qrd_status qrd_mem_free(qrd_comm_t, void*) { return Stub(); }
qrd_status qrd_mem_register(qrd_comm_t, void*, size_t) { return Stub(); }
qrd_status qrd_mem_deregister(qrd_comm_t, void*) { return Stub(); }
qrd_status qrd_all_reduce(qrd_comm_t, const void*, void*, size_t, qrd_dtype, qrd_reduce_op,
                          qrd_operation*) {
  return Stub();
}
qrd_status qrd_wait(qrd_comm_t, qrd_operation, uint32_t, qrd_op_stats*) { return Stub(); }
qrd_status qrd_test(qrd_comm_t, qrd_operation, qrd_op_stats*) { return Stub(); }
