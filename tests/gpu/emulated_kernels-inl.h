// SPDX-License-Identifier: Apache-2.0
// Runs the entry points of kernels/gpu/kernels.h on the emulated device.
#pragma once

#include "emulated_kernels.h"
#include "kernels/gpu/kernels.h"

namespace qrd::gpu {

inline constexpr uint32_t kEmulatedCodecBlocks = 1;
inline constexpr uint32_t kEmulatedRowsBlocks = 2;  // of a rank

template <Codec kCodec, Dtype kDtype>
struct Emulated {
  using E = Entry<kCodec, kDtype>;
  static void OneShot(const AllReduceArgs& args) {
    RunEmulated(args.blocks * args.local_count, kBlockThreads,
                [&] { E::template Run<true>(args); });
  }
  static void TwoShot(const AllReduceArgs& args) {
    RunEmulated(args.blocks * args.local_count, kBlockThreads,
                [&] { E::template Run<false>(args); });
  }
  template <bool kFromFloats>
  static void Encode(const CodecArgs& args) {
    RunEmulated(kEmulatedCodecBlocks, kBlockThreads,
                [&] { E::template Encode<kFromFloats>(args); });
  }
  template <Dtype kTo>
  static void Decode(const CodecArgs& args) {
    RunEmulated(kEmulatedCodecBlocks, kBlockThreads, [&] { E::template Decode<kTo>(args); });
  }
  static constexpr EmulatedKernels kKernels = {
      OneShot,        TwoShot,
      Encode<false>,  Encode<kDtype != Dtype::kFp32 || kCodec == Codec::kNone>,
      Decode<kDtype>, Decode<Dtype::kFp32>};
};

template <Codec kCodec, Dtype kDtype>
struct EmulatedRmsNorm {
  template <bool kOneShot>
  static void Run(const RmsNormReduceArgs& args) {
    RunEmulated(args.reduce.blocks * args.reduce.local_count, kBlockThreads,
                [&] { Entry<kCodec, kDtype>::template RunRmsNorm<kOneShot>(args); });
  }
  static void Scatter(const RmsNormReduceArgs& args) {
    RunEmulated(args.reduce.blocks * args.reduce.local_count, kBlockThreads,
                [&] { Entry<kCodec, kDtype>::RunScatter(args); });
  }
  static void SumToWire(const AllReduceArgs& args) {
    RunEmulated(args.blocks * args.local_count, kBlockThreads,
                [&] { Entry<kCodec, kDtype>::RunSumToWire(args); });
  }
  template <bool kWide>
  static void WireRows(const RowsArgs& args) {
    RunEmulated(kEmulatedRowsBlocks * args.local_count, kBlockThreads,
                [&] { RunWireRows<kCodec, kDtype, kWide>(args); });
  }
  static constexpr EmulatedRmsNormKernels kKernels = {Run<true>, Run<false>,      Scatter,
                                                      SumToWire, WireRows<false>, WireRows<true>};
};

template <Dtype kDtype>
struct EmulatedRows {
  template <RowSource kSource>
  static void Run(const RowsArgs& args) {
    RunEmulated(kEmulatedRowsBlocks * args.local_count, kBlockThreads,
                [&] { RunRows<kDtype, kSource>(args); });
  }
  template <bool kSums>
  static void RunOwned(const RmsNormReduceArgs& args) {
    RunEmulated(args.reduce.blocks * args.reduce.local_count, kBlockThreads,
                [&] { RunOwnedRows<kDtype, kSums>(args); });
  }
  static constexpr EmulatedRowsKernels kKernels = {Run<RowSource::kReduced>,
                                                   Run<RowSource::kStored>, Run<RowSource::kNormed>,
                                                   RunOwned<false>, RunOwned<true>};
};

template <Codec kCodec>
const EmulatedKernels& EmulatedOf(Dtype dtype);
template <Codec kCodec>
const EmulatedRmsNormKernels* EmulatedRmsNormOf(Dtype dtype);

}  // namespace qrd::gpu

// NOLINTNEXTLINE(cppcoreguidelines-macro-usage)
#define QRD_EMULATED_INSTANCE(codec)                                                  \
  template <>                                                                         \
  const EmulatedKernels& EmulatedOf<Codec::codec>(Dtype dtype) {                      \
    if (dtype == Dtype::kFp16) return Emulated<Codec::codec, Dtype::kFp16>::kKernels; \
    if (dtype == Dtype::kBf16) return Emulated<Codec::codec, Dtype::kBf16>::kKernels; \
    return Emulated<Codec::codec, Dtype::kFp32>::kKernels;                            \
  }
#define QRD_EMULATED_RMS_NORM_INSTANCE(codec)                                                 \
  template <>                                                                                 \
  const EmulatedRmsNormKernels* EmulatedRmsNormOf<Codec::codec>(Dtype dtype) {                \
    if (dtype == Dtype::kFp16) return &EmulatedRmsNorm<Codec::codec, Dtype::kFp16>::kKernels; \
    if (dtype == Dtype::kBf16) return &EmulatedRmsNorm<Codec::codec, Dtype::kBf16>::kKernels; \
    return nullptr;                                                                           \
  }
