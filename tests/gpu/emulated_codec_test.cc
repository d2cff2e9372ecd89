// SPDX-License-Identifier: Apache-2.0
// The GPU kernels' codecs, run lane by lane on the CPU (kernels/gpu/device_emulated.h): the same
// bytes as the scalar reference, without a GPU. Built twice: all codecs, and those that convert by
// an instruction on some devices.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "emulated_kernels.h"
#include "golden_files.h"
#include "gtest/gtest.h"
#include "kernels/reference.h"
#include "kernels/types.h"
#include "test_data.h"

namespace qrd {
namespace {

using testing::Bytes;
using testing::Data;
using testing::GoldenFolder;
using testing::MakeTensor;

constexpr Dtype kDtypes[] = {Dtype::kFp16, Dtype::kBf16, Dtype::kFp32};

std::string Text(Codec codec, Dtype dtype) {
  return std::string(Name(codec)) + " " + std::string(Name(dtype));
}

gpu::CodecArgs Args(const void* values, std::byte* wire, uint64_t count) {
  const auto bits = reinterpret_cast<uintptr_t>(values) | reinterpret_cast<uintptr_t>(wire);
  return {const_cast<void*>(values), reinterpret_cast<uint8_t*>(wire), count, bits % 16 == 0};
}

// Encodes and decodes with the emulated kernels and compares with the reference.
void CheckCodec(Codec codec, Dtype dtype, Dtype source, const void* x, uint64_t count) {
  const gpu::EmulatedKernels& kernels = gpu::EmulatedKernelsOf(codec, dtype);
  const uint64_t wire_bytes = EncodedBytes(codec, dtype, count);
  Bytes want(wire_bytes), wire(wire_bytes, std::byte{0xA5});
  if (source == dtype) {
    ReferenceEncode(codec, dtype, x, count, want.data());
    kernels.encode(Args(x, wire.data(), count));
  } else {
    ReferenceEncodeFp32(codec, dtype, static_cast<const float*>(x), count, want.data());
    kernels.encode_fp32(Args(x, wire.data(), count));
  }
  EXPECT_TRUE(wire == want) << "wire of " << Text(codec, dtype) << " count " << count << " from "
                            << Name(source);
  std::vector<float> want_values(count), values(count, 1234.5f);
  ReferenceDecode(codec, dtype, want.data(), count, want_values.data());
  kernels.decode_fp32(Args(values.data(), want.data(), count));
  EXPECT_EQ(std::memcmp(values.data(), want_values.data(), count * sizeof(float)), 0)
      << "values of " << Text(codec, dtype) << " count " << count;
  Bytes want_rounded(count * DtypeBytes(dtype)), rounded(want_rounded.size());
  ReferenceRoundToDtype(dtype, want_values.data(), count, want_rounded.data());
  kernels.decode(Args(rounded.data(), want.data(), count));
  EXPECT_TRUE(rounded == want_rounded) << "rounded " << Text(codec, dtype) << " count " << count;
}

TEST(EmulatedCodecTest, HardTensorsGiveTheReferencesBytes) {
  for (const Codec codec : gpu::EmulatedCodecs()) {
    for (const Dtype dtype : kDtypes) {
      for (const Data data : {Data::kOrdinary, Data::kAdversarial, Data::kBits}) {
        for (const uint64_t count : {1u, 40u, 2048u, 2 * 2048u + 777u}) {
          const auto seed = static_cast<uint32_t>(count);
          CheckCodec(codec, dtype, dtype, MakeTensor(dtype, count, data, seed).data(), count);
          if (dtype == Dtype::kFp32) continue;
          CheckCodec(codec, dtype, Dtype::kFp32, MakeTensor(Dtype::kFp32, count, data, seed).data(),
                     count);
        }
      }
    }
  }
}

TEST(EmulatedCodecTest, AnyWireBytesDecodeAsInTheReference) {
  for (const Codec codec : gpu::EmulatedCodecs()) {
    for (const Dtype dtype : kDtypes) {
      constexpr uint64_t kCount = 2048 + 100;
      Bytes wire =
          MakeTensor(Dtype::kFp32, EncodedBytes(codec, dtype, kCount) / 4 + 1, Data::kBits, 9);
      std::vector<float> want(kCount), values(kCount);
      ReferenceDecode(codec, dtype, wire.data(), kCount, want.data());
      gpu::EmulatedKernelsOf(codec, dtype).decode_fp32(Args(values.data(), wire.data(), kCount));
      EXPECT_EQ(std::memcmp(values.data(), want.data(), kCount * sizeof(float)), 0)
          << Text(codec, dtype);
    }
  }
}

TEST(EmulatedCodecTest, GoldenFilesAreMatchedByteForByte) {
  const GoldenFolder golden = testing::LoadGoldenFolder(QRD_TEST_DATA_DIR "/golden/codec");
  int checked = 0;
  for (const auto& record : golden.records) {
    if (record.at("test") != "codec") continue;
    const Codec codec = GoldenFolder::CodecOf(record);
    if (std::ranges::count(gpu::EmulatedCodecs(), codec) == 0) continue;
    const Dtype dtype = GoldenFolder::DtypeOf(record);
    const Dtype source = GoldenFolder::DtypeOf(record, "in_type");
    const auto count = record.at("n").get<uint64_t>();
    const Bytes input =
        testing::Slice(golden.inputs, record.at("input"), count * DtypeBytes(source));
    const Bytes want = testing::Slice(golden.wire, record.at("wire"), record.at("wire_size"));
    Bytes wire(want.size());
    const gpu::EmulatedKernels& kernels = gpu::EmulatedKernelsOf(codec, dtype);
    (source == dtype ? kernels.encode
                     : kernels.encode_fp32)(Args(input.data(), wire.data(), count));
    EXPECT_TRUE(wire == want) << GoldenFolder::Describe(record);
    ++checked;
  }
  EXPECT_GT(checked, 5 * static_cast<int>(gpu::EmulatedCodecs().size()));
}

}  // namespace
}  // namespace qrd
