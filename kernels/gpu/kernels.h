// SPDX-License-Identifier: Apache-2.0
// The entry points: device functions of the other headers as kernels. Included by the generated
// instance files only; each makes one of the three kinds of table.
#pragma once

#include <type_traits>

#include "kernels/gpu/all_reduce.h"
#include "kernels/gpu/all_reduce_none.h"
#include "kernels/gpu/codec_kernels.h"
#include "kernels/gpu/device.h"
#include "kernels/gpu/epilogue.h"
#include "kernels/gpu/kernel_args.h"
#include "kernels/gpu/owned_rows.h"
#include "kernels/gpu/stored_rows.h"
#include "kernels/gpu/wire_rows.h"

namespace qrd::gpu {

inline constexpr uint32_t kCodecBlocks = 4;

template <Codec kCodec, Dtype kDtype>
struct Entry {
  static constexpr bool kNone = kCodec == Codec::kNone;
  template <typename Epilogue>
  using Collective = std::conditional_t<kNone, AllReduceNone<kDtype, Epilogue>,
                                        AllReduce<kCodec, kDtype, Epilogue>>;
  template <bool kOneShot, typename Epilogue, typename Args>
  static QRD_DEVICE void RunWith(const Args& args) {
    Collective<Epilogue> run(args);
    if constexpr (kOneShot) {
      run.OneShot();
    } else {
      run.TwoShot();
    }
  }
  template <bool kOneShot>
  static QRD_DEVICE void Run(const AllReduceArgs& args) {
    RunWith<kOneShot, IdentityEpilogue<kDtype>>(args);
  }
  template <bool kOneShot>
  static QRD_DEVICE void RunRmsNorm(const RmsNormReduceArgs& args) {
    // Only there is a row complete while its block still has it (kernel_args.h, "Rows").
    if constexpr (kNone && kOneShot) {
      RunWith<kOneShot, RmsNormEpilogue<kDtype>>(args);
    } else {
      RunWith<kOneShot, ResidualEpilogue<kDtype>>(args);
    }
  }
  static QRD_DEVICE void RunScatter(const RmsNormReduceArgs& args) {
    if constexpr (!kNone) {
      AllReduce<kCodec, kDtype, OwnRowsEpilogue<kDtype>> run(args);
      run.Scatter(args.norm);
    }
  }
  static QRD_DEVICE void RunSumToWire(const AllReduceArgs& args) {
    Collective<WireEpilogue<kDtype, !kNone>> run(args);
    run.SumToWire();
  }
  template <bool kFromFloats>
  static QRD_DEVICE void Encode(const CodecArgs& args) {
    if constexpr (kNone) {
      ConvertTensor<kFromFloats ? Dtype::kFp32 : kDtype, kDtype, kFromFloats>(
          args.values, args.wire, args.count, args.aligned);
    } else {
      EncodeTensor<kCodec, kDtype, kFromFloats>(args);
    }
  }
  template <Dtype kTo>
  static QRD_DEVICE void Decode(const CodecArgs& args) {
    if constexpr (kNone) {
      ConvertTensor<kDtype, kTo, true>(args.wire, args.values, args.count, args.aligned);
    } else {
      DecodeTensor<kCodec, kDtype, kTo>(args);
    }
  }
};

template <Codec kCodec, Dtype kDtype>
QRD_KERNEL(kBlockThreads, BlocksPerProcessor(kCodec))
OneShotKernel(const AllReduceArgs args) {
  Entry<kCodec, kDtype>::template Run<true>(args);
}
template <Codec kCodec, Dtype kDtype>
QRD_KERNEL(kBlockThreads, BlocksPerProcessor(kCodec))
TwoShotKernel(const AllReduceArgs args) {
  Entry<kCodec, kDtype>::template Run<false>(args);
}
template <Codec kCodec, Dtype kDtype>
QRD_KERNEL(kBlockThreads, BlocksPerProcessor(kCodec))
OneShotRmsNormKernel(const RmsNormReduceArgs args) {
  Entry<kCodec, kDtype>::template RunRmsNorm<true>(args);
}
template <Codec kCodec, Dtype kDtype>
QRD_KERNEL(kBlockThreads, BlocksPerProcessor(kCodec))
TwoShotRmsNormKernel(const RmsNormReduceArgs args) {
  Entry<kCodec, kDtype>::template RunRmsNorm<false>(args);
}
template <Codec kCodec, Dtype kDtype>
QRD_KERNEL(kBlockThreads, BlocksPerProcessor(kCodec))
ScatterKernel(const RmsNormReduceArgs args) {
  Entry<kCodec, kDtype>::RunScatter(args);
}
template <Codec kCodec, Dtype kDtype>
QRD_KERNEL(kBlockThreads, BlocksPerProcessor(kCodec))
SumToWireKernel(const AllReduceArgs args) {
  Entry<kCodec, kDtype>::RunSumToWire(args);
}
template <Codec kCodec, Dtype kDtype, bool kWide>
QRD_KERNEL(kBlockThreads, WireRowsBlocks(kCodec, kWide))
WireRowsKernel(const RowsArgs args) {
  RunWireRows<kCodec, kDtype, kWide>(args);
}
template <Dtype kDtype, bool kSums>
QRD_KERNEL(kBlockThreads, BlocksPerProcessor(Codec::kNone))
OwnedRowsKernel(const RmsNormReduceArgs args) {
  RunOwnedRows<kDtype, kSums>(args);
}
// Null where the rows' owners read the inputs themselves.
template <Codec kCodec, Dtype kDtype>
const void* ScatterOf() {
  if constexpr (kCodec == Codec::kNone) {
    return nullptr;
  } else {
    return reinterpret_cast<const void*>(&ScatterKernel<kCodec, kDtype>);
  }
}
template <Codec kCodec, Dtype kDtype>
RmsNormKernelTable MakeRmsNormTable() {
  return {reinterpret_cast<const void*>(&OneShotRmsNormKernel<kCodec, kDtype>),
          reinterpret_cast<const void*>(&TwoShotRmsNormKernel<kCodec, kDtype>),
          ScatterOf<kCodec, kDtype>(),
          reinterpret_cast<const void*>(&SumToWireKernel<kCodec, kDtype>),
          reinterpret_cast<const void*>(&WireRowsKernel<kCodec, kDtype, false>),
          reinterpret_cast<const void*>(&WireRowsKernel<kCodec, kDtype, true>)};
}
template <Dtype kDtype, RowSource kSource>
QRD_KERNEL(kBlockThreads, kRowsBlocks)
RowsKernel(const RowsArgs args) {
  RunRows<kDtype, kSource>(args);
}
template <Codec kCodec, Dtype kDtype, bool kFromFloats>
QRD_KERNEL(kBlockThreads, kCodecBlocks)
EncodeKernel(const CodecArgs args) {
  Entry<kCodec, kDtype>::template Encode<kFromFloats>(args);
}
template <Codec kCodec, Dtype kDtype, Dtype kTo>
QRD_KERNEL(kBlockThreads, kCodecBlocks)
DecodeKernel(const CodecArgs args) {
  Entry<kCodec, kDtype>::template Decode<kTo>(args);
}

// Specialised by the instance files.
template <Codec kCodec, Dtype kDtype>
const KernelTable& TableOf();
template <Codec kCodec, Dtype kDtype>
const RmsNormKernelTable& RmsNormTableOf();
template <Dtype kDtype>
const RowsKernelTable& RowsTableOf();

// NOLINTBEGIN(cppcoreguidelines-macro-usage)
#define QRD_GPU_RMS_NORM_INSTANCE(codec, dtype)                                             \
  template <>                                                                               \
  const RmsNormKernelTable& RmsNormTableOf<Codec::codec, Dtype::dtype>() {                  \
    static const RmsNormKernelTable table = MakeRmsNormTable<Codec::codec, Dtype::dtype>(); \
    return table;                                                                           \
  }
#define QRD_GPU_ROWS_INSTANCE(dtype)                                                   \
  template <>                                                                          \
  const RowsKernelTable& RowsTableOf<Dtype::dtype>() {                                 \
    static const RowsKernelTable table = {                                             \
        reinterpret_cast<const void*>(&RowsKernel<Dtype::dtype, RowSource::kReduced>), \
        reinterpret_cast<const void*>(&RowsKernel<Dtype::dtype, RowSource::kStored>),  \
        reinterpret_cast<const void*>(&RowsKernel<Dtype::dtype, RowSource::kNormed>),  \
        reinterpret_cast<const void*>(&OwnedRowsKernel<Dtype::dtype, false>),          \
        reinterpret_cast<const void*>(&OwnedRowsKernel<Dtype::dtype, true>)};          \
    return table;                                                                      \
  }
// NOLINTEND(cppcoreguidelines-macro-usage)

// NOLINTNEXTLINE(cppcoreguidelines-macro-usage)
#define QRD_GPU_INSTANCE(codec, dtype)                                                           \
  template <>                                                                                    \
  const KernelTable& TableOf<Codec::codec, Dtype::dtype>() {                                     \
    static const KernelTable table = {                                                           \
        reinterpret_cast<const void*>(&OneShotKernel<Codec::codec, Dtype::dtype>),               \
        reinterpret_cast<const void*>(&TwoShotKernel<Codec::codec, Dtype::dtype>),               \
        reinterpret_cast<const void*>(&EncodeKernel<Codec::codec, Dtype::dtype, false>),         \
        reinterpret_cast<const void*>(                                                           \
            &EncodeKernel < Codec::codec, Dtype::dtype,                                          \
            Dtype::dtype != Dtype::kFp32 || Codec::codec == Codec::kNone >),                     \
        reinterpret_cast<const void*>(&DecodeKernel<Codec::codec, Dtype::dtype, Dtype::dtype>),  \
        reinterpret_cast<const void*>(&DecodeKernel<Codec::codec, Dtype::dtype, Dtype::kFp32>)}; \
    return table;                                                                                \
  }

}  // namespace qrd::gpu
