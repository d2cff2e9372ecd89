// SPDX-License-Identifier: Apache-2.0
// All-reduce with residual, RMSNorm and FP8 from client processes on a GPU, through a daemon.
#include "kernels/reference_rms_norm.h"
#include "tests/gpu/served_fixture.h"

namespace qrd::testing {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;

constexpr uint64_t kTokens = 33;
constexpr uint32_t kHidden = 6160;
constexpr uint64_t kCount = kTokens * kHidden, kBytes = 2 * kCount;
constexpr uint32_t kRanks = 2;

struct NormTensors {
  std::vector<Bytes> inputs = Tensors(Dtype::kBf16, kCount, kRanks, 31);
  Bytes residual = MakeTensor(Dtype::kBf16, kCount, Data::kOrdinary, 32);
  Bytes weight = MakeTensor(Dtype::kBf16, kHidden, Data::kOrdinary, 33);
  Bytes residual_out = Bytes(kBytes), mirror = Bytes(kBytes), out8 = Bytes(kCount),
        scales = Bytes(kTokens * sizeof(float));
};

uint64_t FirstByteOf(ResidualLayout layout, uint32_t rank) {
  return layout == ResidualLayout::kFull ? 0 : OwnedRows(kTokens, kRanks, rank).first * kHidden * 2;
}
uint64_t ResidualBytesOf(ResidualLayout layout, uint32_t rank) {
  if (layout == ResidualLayout::kFull) return kBytes;
  const RowRange rows = OwnedRows(kTokens, kRanks, rank);
  return (rows.last - rows.first) * kHidden * 2;
}

// Fills the results; residual_out has all rows, sharded those of their owners.
void Reference(Codec codec, Algorithm algorithm, ResidualLayout layout, NormTensors* t) {
  LaunchParams p;
  p.codec = codec;
  p.algorithm = algorithm;
  p.dtype = Dtype::kBf16;
  p.world_size = kRanks;
  p.count = kCount;
  p.epilogue = Epilogue::kRmsNorm;
  RmsNormParams& n = p.rms_norm;
  n.tokens = kTokens;
  n.hidden = kHidden;
  n.eps = 1e-5f;
  n.weight_dtype = Dtype::kBf16;
  n.quant = Quant::kE4m3fn;
  n.residual_layout = layout;
  std::vector<NormTensors> others(kRanks);
  for (uint32_t r = 0; r < kRanks; ++r) {
    NormTensors& own = r == 0 ? *t : others[r];
    p.inputs[r] = t->inputs[r].data();
    const uint64_t first = FirstByteOf(layout, r);
    n.residual[r] = t->residual.data() + first;
    n.weight[r] = t->weight.data();
    n.residual_out[r] = (layout == ResidualLayout::kFull ? own : *t).residual_out.data() + first;
    n.mirror[r] = own.mirror.data();
    n.out8[r] = reinterpret_cast<uint8_t*>(own.out8.data());
    n.scales[r] = reinterpret_cast<float*>(own.scales.data());
  }
  ReferenceAllReduceRmsNorm(p);
}

std::string RunRank(const std::string& directory, uint32_t rank, ResidualLayout layout,
                    const NormTensors& want) {
  ServedRank self(directory, rank, kRanks);
  const Memory memory = self.comm.Allocate(8 * kBytes);
  auto* base = static_cast<std::byte*>(memory.data());
  const auto at = [&](int index) { return base + static_cast<uint64_t>(index) * kBytes; };
  QRD_MUST(hipMemcpy(at(0), want.inputs[rank].data(), kBytes, hipMemcpyHostToDevice));
  const uint64_t first = FirstByteOf(layout, rank), residual_bytes = ResidualBytesOf(layout, rank);
  QRD_MUST(hipMemcpy(at(1), want.residual.data() + first, residual_bytes, hipMemcpyHostToDevice));
  const Bytes residual_out(
      want.residual_out.begin() + static_cast<ptrdiff_t>(first),
      want.residual_out.begin() + static_cast<ptrdiff_t>(first + residual_bytes));
  QRD_MUST(hipMemcpy(at(2), want.weight.data(), want.weight.size(), hipMemcpyHostToDevice));
  QRD_MUST(hipDeviceSynchronize());  // a copy may return before its data is there
  qrd_rms_norm norm = QRD_RMS_NORM_INIT;
  norm.tokens = kTokens;
  norm.hidden = kHidden;
  norm.eps = 1e-5f;
  norm.weight_dtype = QRD_BF16;
  norm.quant = QRD_E4M3FN;
  norm.residual_layout = static_cast<qrd_residual_layout>(layout);
  norm.residual = at(1);
  norm.weight = at(2);
  norm.residual_out = at(3);
  norm.mirror = at(4);
  norm.out8 = reinterpret_cast<uint8_t*>(at(5));
  norm.scales = reinterpret_cast<float*>(at(6));
  const auto check = [&](const char* what) -> std::string {
    self.comm.CheckStreams();
    const std::pair<const void*, const Bytes*> results[] = {
        {at(3), &residual_out}, {at(4), &want.mirror}, {at(5), &want.out8}, {at(6), &want.scales}};
    for (size_t i = 0; i < std::size(results); ++i) {
      const auto& [from, bytes] = results[i];
      const std::string error = Difference(self.Download(from, bytes->size()), *bytes);
      if (!error.empty()) return std::string(what) + ": result " + std::to_string(i) + ": " + error;
    }
    QRD_MUST(hipMemsetAsync(at(3), 0xA5, 4 * kBytes, self.stream.get()));
    self.stream.Wait();
    return "";
  };
  self.comm.AllReduceRmsNorm(at(0), QRD_BF16, norm).Wait();
  std::string error = check("host-waited");
  self.comm.AllReduceRmsNormOnStream(at(0), QRD_BF16, norm, self.stream.get());
  self.stream.Wait();
  if (error.empty()) error = check("on a stream");
  const Graph graph(self.stream, [&] {
    self.comm.AllReduceRmsNormOnStream(at(0), QRD_BF16, norm, self.stream.get());
  });
  for (int replay = 0; replay < 20; ++replay) {
    graph.Replay(self.stream);
    self.stream.Wait();
    if (error.empty()) error = check("graph");
  }
  return error;
}

TEST_F(ServedTest, RmsNormGivesTheBytesOfTheReferenceUnderEveryCodec) {
  for (const auto& [codec, algorithm] :
       {std::pair{Codec::kNone, Algorithm::kOneShot}, std::pair{Codec::kNone, Algorithm::kTwoShot},
        std::pair{Codec::kInt4, Algorithm::kTwoShot}, std::pair{Codec::kLp3, Algorithm::kOneShot},
        std::pair{Codec::kInt3, Algorithm::kTwoShot}}) {
    SetPolicy(std::string(Name(codec)), std::string(Name(algorithm)));
    for (const ResidualLayout layout : {ResidualLayout::kFull, ResidualLayout::kSharded}) {
      const bool sharded = layout == ResidualLayout::kSharded;
      NormTensors want;
      Reference(codec, sharded ? Algorithm::kTwoShot : algorithm, layout, &want);
      EXPECT_THAT(RunRanks(kRanks, Guarded([&](RankProcess& process) {
                             return RunRank(directory(), process.rank(), layout, want);
                           })),
                  Each(IsEmpty()))
          << Name(codec) << ' ' << Name(layout);
    }
  }
}

}  // namespace
}  // namespace qrd::testing
