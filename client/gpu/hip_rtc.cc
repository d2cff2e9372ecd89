// SPDX-License-Identifier: Apache-2.0
#include "client/gpu/hip_rtc.h"

#include <string>

#include "client/core/error.h"
#include "client/gpu/gate_kernel.h"
#include "client/gpu/hip_api.h"
#include "client/gpu/library.h"

namespace qrd::client::gpu {
namespace {

// By the versions of ROCm, newest first.
constexpr const char* kLibraries[] = {"libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so"};

qrd_status LoadRtc(hip::RtcApi* api) {
  Library library;
  std::string why;
  bool found = false;
  for (const char* name : kLibraries) {
    if ((found = library.Open(name, &why))) break;
  }
  if (!found) {
    return Fail(QRD_UNIMPLEMENTED, "the gate kernel needs hiprtc: %.300s", why.c_str());
  }
  const char* missing = nullptr;
#define QRD_LOAD(member, symbol, parameters)                          \
  api->member = library.FindFunction<decltype(api->member)>(#symbol); \
  if (api->member == nullptr) missing = #symbol;
  QRD_HIPRTC_FUNCTIONS(QRD_LOAD)
#undef QRD_LOAD
  if (missing == nullptr) return QRD_OK;
  return Fail(QRD_UNIMPLEMENTED, "%s has no function %s", library.name().c_str(), missing);
}

std::string LogOf(const hip::RtcApi& api, void* program) {
  size_t bytes = 0;
  if (api.GetProgramLogSize(program, &bytes) != 0 || bytes == 0) return "no log";
  std::string log(bytes, '\0');
  if (api.GetProgramLog(program, log.data()) != 0) return "no log";
  return log;
}

}  // namespace

qrd_status CompileHipGate(std::vector<char>* code) {
  hip::RtcApi api;
  if (qrd_status status = LoadRtc(&api); status != QRD_OK) return status;
  void* program = nullptr;
  int result = api.CreateProgram(&program, kGateHipSource, "qrd_gate.hip", 0, nullptr, nullptr);
  if (result != 0) {
    return Fail(QRD_UNIMPLEMENTED, "hiprtcCreateProgram of the gate kernel: error %d", result);
  }
  qrd_status status = QRD_OK;
  size_t bytes = 0;
  result = api.CompileProgram(program, 0, nullptr);
  if (result != 0) {
    status = Fail(QRD_UNIMPLEMENTED, "hiprtcCompileProgram of the gate kernel: error %d: %.500s",
                  result, LogOf(api, program).c_str());
  } else if ((result = api.GetCodeSize(program, &bytes)) == 0) {
    code->resize(bytes);
    result = api.GetCode(program, code->data());
  }
  if (status == QRD_OK && result != 0) {
    status = Fail(QRD_UNIMPLEMENTED, "hiprtcGetCode of the gate kernel: error %d", result);
  }
  api.DestroyProgram(&program);
  return status;
}

}  // namespace qrd::client::gpu
