// SPDX-License-Identifier: Apache-2.0
// Stands for a GPU driver library that libqrd is to refuse, or to ask about one pointer. Here are
// all functions that libqrd needs, each answering "not supported"; driver_stub_answers.cc has those
// that say something else. Compiled with QRD_STUB_CUDA or QRD_STUB_HIP_OLD.
#include "client/gpu/cuda_api.h"
#include "client/gpu/hip_api.h"

#define QRD_STUB(member, symbol, parameters) \
  extern "C" __attribute__((weak)) int symbol parameters { return 801; }

#if defined(QRD_STUB_CUDA) || defined(QRD_STUB_LATE) || defined(QRD_STUB_UNTOUCHED)
using namespace qrd::client::gpu::cuda;  // NOLINT: the list of functions names its types
QRD_CUDA_FUNCTIONS(QRD_STUB, QRD_STUB)
#elif defined(QRD_STUB_HIP_OLD)
using namespace qrd::client::gpu::hip;  // NOLINT: the list of functions names its types
QRD_HIP_FUNCTIONS(QRD_STUB, QRD_STUB)
#endif
