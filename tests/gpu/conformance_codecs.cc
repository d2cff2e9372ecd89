// SPDX-License-Identifier: Apache-2.0
// Codecs on the device against the scalar reference and the golden files, byte for byte.
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "conformance.h"
#include "device_support.h"
#include "kernels/gpu/gpu_collective.h"
#include "kernels/reference.h"
#include "test_data.h"

namespace qrd::testing {
namespace {

Bytes ReadWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  Bytes bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

struct CodecCase {
  Codec codec;
  Dtype dtype;
  bool from_fp32;
  uint64_t count;
  uint64_t offset;  // of tensors (elements) and wire (bytes), to misalign them
};

// The device encodes x and decodes `wire`; both must be as wanted.
void CheckOnDevice(const CodecCase& c, const void* x, const Bytes& wire, const Bytes& values,
                   const std::string& what, Report* report) {
  const uint64_t in_bytes = c.from_fp32 ? 4 : DtypeBytes(c.dtype);
  const DeviceBuffer input(c.count * in_bytes, c.offset * in_bytes);
  const DeviceBuffer encoded(wire.size(), c.offset);
  const DeviceBuffer decoded(c.count * 4, c.offset * 4);
  const DeviceBuffer rounded(c.count * DtypeBytes(c.dtype), c.offset * DtypeBytes(c.dtype));
  input.Upload(x);
  report->Check(gpu::LaunchEncode(c.codec, c.dtype, c.from_fp32, input.data(), c.count,
                                  encoded.data(), nullptr),
                what);
  QRD_MUST(hipDeviceSynchronize());
  report->Check(encoded.Download() == wire, "wire of " + what);
  report->Check(encoded.GuardsAreIntact(), "bytes around the wire of " + what);
  encoded.Upload(wire.data());
  report->Check(
      gpu::LaunchDecode(c.codec, c.dtype, true, encoded.data(), c.count, decoded.data(), nullptr),
      what);
  report->Check(
      gpu::LaunchDecode(c.codec, c.dtype, false, encoded.data(), c.count, rounded.data(), nullptr),
      what);
  QRD_MUST(hipDeviceSynchronize());
  report->Check(decoded.Download() == values, "values of " + what);
  Bytes want_rounded(c.count * DtypeBytes(c.dtype));
  ReferenceRoundToDtype(c.dtype, reinterpret_cast<const float*>(values.data()), c.count,
                        want_rounded.data());
  report->Check(rounded.Download() == want_rounded, "rounded values of " + what);
  report->Check(decoded.GuardsAreIntact() && rounded.GuardsAreIntact(), "bytes around " + what);
}

void CheckAgainstReference(const CodecCase& c, const Bytes& x, const std::string& data,
                           Report* report) {
  Bytes wire(EncodedBytes(c.codec, c.dtype, c.count)), values(c.count * 4);
  if (c.from_fp32) {
    ReferenceEncodeFp32(c.codec, c.dtype, reinterpret_cast<const float*>(x.data()), c.count,
                        wire.data());
  } else {
    ReferenceEncode(c.codec, c.dtype, x.data(), c.count, wire.data());
  }
  ReferenceDecode(c.codec, c.dtype, wire.data(), c.count, reinterpret_cast<float*>(values.data()));
  const std::string what = std::string(Name(c.codec)) + " " + std::string(Name(c.dtype)) +
                           (c.from_fp32 ? " from fp32 " : " ") + data + " count " +
                           std::to_string(c.count) + " offset " + std::to_string(c.offset);
  const std::lock_guard<std::mutex> lock(DeviceMutex());
  CheckOnDevice(c, x.data(), wire, values, what, report);
}

// Every 16-bit pattern once, in a fixed disorder.
Bytes AllPatterns() {
  Bytes tensor(2 * 65536);
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto pattern = static_cast<uint16_t>(i * 40503u + 77);
    std::memcpy(tensor.data() + 2 * i, &pattern, 2);
  }
  return tensor;
}

}  // namespace

std::mutex& DeviceMutex() {
  static std::mutex mutex;
  return mutex;
}

void CheckCodecs(Report* report) {
  std::vector<std::function<void()>> work;
  for (const Codec codec : kAllCodecs) {
    for (const Dtype dtype : {Dtype::kFp16, Dtype::kBf16, Dtype::kFp32}) {
      for (const bool from_fp32 : {false, true}) {
        for (const Data data : {Data::kOrdinary, Data::kAdversarial, Data::kBits}) {
          for (const auto& [count, offset] : {std::pair<uint64_t, uint64_t>{300'000, 0},
                                              {2048, 0},
                                              {1, 0},
                                              {31, 1},
                                              {10'007, 3}}) {
            work.push_back([=] {
              const Bytes x = MakeTensor(from_fp32 ? Dtype::kFp32 : dtype, count, data,
                                         static_cast<uint32_t>(count * 7 + offset));
              CheckAgainstReference({codec, dtype, from_fp32, count, offset}, x,
                                    "data " + std::to_string(static_cast<int>(data)), report);
            });
          }
        }
        if (from_fp32 || dtype == Dtype::kFp32) continue;
        work.push_back([=] {
          CheckAgainstReference({codec, dtype, false, 65536, 0}, AllPatterns(), "all patterns",
                                report);
        });
      }
    }
  }
  RunInParallel(work);
}

// All 2^16 scales or words a codec can see on the wire, hostile ones too.
void CheckAnyWire(Report* report) {
  std::vector<std::function<void()>> work;
  for (const Codec codec : kAllCodecs) {
    for (const Dtype dtype : {Dtype::kFp16, Dtype::kBf16, Dtype::kFp32}) {
      work.push_back([=] {
        constexpr uint64_t kCount = 2'000'000;
        const uint64_t bytes = EncodedBytes(codec, dtype, kCount);
        const Bytes wire = MakeTensor(Dtype::kFp32, bytes / 4 + 1, Data::kBits, 5);
        Bytes want(kCount * 4);
        ReferenceDecode(codec, dtype, wire.data(), kCount, reinterpret_cast<float*>(want.data()));
        const std::lock_guard<std::mutex> lock(DeviceMutex());
        const DeviceBuffer encoded(wire.size()), decoded(kCount * 4);
        encoded.Upload(wire.data());
        report->Check(
            gpu::LaunchDecode(codec, dtype, true, encoded.data(), kCount, decoded.data(), nullptr),
            "decode");
        QRD_MUST(hipDeviceSynchronize());
        report->Check(decoded.Download() == want, "any wire bytes of " + std::string(Name(codec)) +
                                                      " " + std::string(Name(dtype)));
      });
    }
  }
  RunInParallel(work);
}

void CheckGoldenCodecs(const std::string& folder, Report* report) {
  const Bytes inputs = ReadWhole(folder + "/inputs.bin"), wire = ReadWhole(folder + "/wire.bin"),
              decoded = ReadWhole(folder + "/decoded.bin"),
              text = ReadWhole(folder + "/index.json");
  const auto index = nlohmann::json::parse(reinterpret_cast<const char*>(text.data()),
                                           reinterpret_cast<const char*>(text.data()) + text.size(),
                                           nullptr, false);
  if (!report->Check(index.is_array(), folder + "/index.json is readable")) return;
  int records = 0;
  for (const auto& record : index) {
    if (record.at("test") != "codec") continue;
    const Codec codec = ParseCodec(record.at("codec").get<std::string>()).value();
    const Dtype dtype = ParseDtype(record.at("dtype").get<std::string>()).value();
    const Dtype source = ParseDtype(record.at("in_type").get<std::string>()).value();
    const auto count = record.at("n").get<uint64_t>();
    const auto at = [&](const char* key) { return record.at(key).get<uint64_t>(); };
    const auto slice = [](const Bytes& blob, uint64_t offset, uint64_t bytes) {
      return Bytes(blob.begin() + static_cast<ptrdiff_t>(offset),
                   blob.begin() + static_cast<ptrdiff_t>(offset + bytes));
    };
    const bool from_fp32 = source != dtype;
    CheckOnDevice({codec, dtype, from_fp32, count, 0}, inputs.data() + at("input"),
                  slice(wire, at("wire"), at("wire_size")),
                  slice(decoded, at("decoded"), count * 4), "golden " + record.dump(), report);
    ++records;
  }
  report->Check(records > 100, "golden codec records: " + std::to_string(records));
}

}  // namespace qrd::testing
