// SPDX-License-Identifier: Apache-2.0
// All-reduce with residual, RMSNorm and FP8 through a real daemon, from rank processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <qrd/qrd.h>

#include <cstring>
#include <string>
#include <vector>

#include "kernels/reference_rms_norm.h"
#include "tests/integration/all_reduce_fixture.h"
#include "tests/support/daemon_process.h"
#include "tests/support/rank_processes.h"
#include "tests/tools/run_program.h"

namespace qrd::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct NormCase {
  Dtype dtype;
  uint64_t tokens;
  uint32_t hidden;
  Quant quant;
  bool residual, mirror, gemma, in_place, own_memory;
  uint32_t scale_group;
  bool sharded = false;

  // Bytes of residual and residual_out before a rank's rows, and of them.
  struct Slice {
    size_t first, bytes;
  };
  Slice ResidualOf(uint32_t rank, uint32_t world_size) const {
    const RowRange rows = sharded ? OwnedRows(tokens, world_size, rank) : RowRange{0, tokens};
    const size_t row_bytes = hidden * DtypeBytes(dtype);
    return {rows.first * row_bytes, (rows.last - rows.first) * row_bytes};
  }
};

using Bytes = std::vector<std::byte>;

Bytes RandomTensor(Dtype dtype, uint64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  Bytes bytes(count * DtypeBytes(dtype));
  ReferenceRoundToDtype(dtype, values.data(), count, bytes.data());
  return bytes;
}

// All tensors of one rank.
struct Tensors {
  Tensors(const NormCase& c, uint32_t rank)
      : input(RandomTensor(c.dtype, c.tokens * c.hidden, 100 + rank)),
        residual(RandomTensor(c.dtype, c.tokens * c.hidden, 7)),
        weight(RandomTensor(c.dtype, c.hidden, 8)),
        residual_out(input.size(), std::byte{0xA5}),
        out(input.size(), std::byte{0xA5}),
        out8(input.size() / 2, std::byte{0xA5}),
        scales(c.tokens * (c.scale_group == 0 ? 1 : (c.hidden + 127) / 128) * sizeof(float),
               std::byte{0xA5}) {}
  Bytes input, residual, weight, residual_out, out, out8, scales;  // out is the mirror with quant
};

// What every rank must get; residual_out has all rows, sharded those of their owners.
Tensors Want(const NormCase& c, uint32_t world_size, Codec codec, Algorithm algorithm) {
  std::vector<Tensors> ranks;
  LaunchParams p;
  p.codec = codec;
  p.algorithm = c.sharded ? Algorithm::kTwoShot : algorithm;
  p.dtype = c.dtype;
  p.world_size = world_size;
  p.count = c.tokens * c.hidden;
  p.epilogue = Epilogue::kRmsNorm;
  RmsNormParams& n = p.rms_norm;
  n.tokens = c.tokens;
  n.hidden = c.hidden;
  n.eps = 1e-5f;
  n.gemma = c.gemma;
  n.weight_dtype = c.dtype;
  n.quant = c.quant;
  n.scale_group = c.scale_group;
  n.residual_layout = c.sharded ? ResidualLayout::kSharded : ResidualLayout::kFull;
  for (uint32_t r = 0; r < world_size; ++r) ranks.emplace_back(c, r);
  for (uint32_t r = 0; r < world_size; ++r) {
    Tensors& t = ranks[r];
    p.inputs[r] = t.input.data();
    const size_t first = c.ResidualOf(r, world_size).first;
    n.residual[r] = c.residual ? t.residual.data() + first : nullptr;
    n.weight[r] = t.weight.data();
    n.residual_out[r] = (c.sharded ? ranks[0] : t).residual_out.data() + first;
    if (c.quant == Quant::kNone) n.out[r] = t.out.data();
    if (c.quant != Quant::kNone) {
      n.out8[r] = reinterpret_cast<uint8_t*>(t.out8.data());
      n.scales[r] = reinterpret_cast<float*>(t.scales.data());
      if (c.mirror) n.mirror[r] = t.out.data();
    }
  }
  ReferenceAllReduceRmsNorm(p);
  return ranks[0];
}

class NormRank {
 public:
  NormRank(qrd_comm_t comm, const NormCase& c, uint32_t rank, uint32_t world_size)
      : comm_(comm), c_(c), slice_(c.ResidualOf(rank, world_size)), t_(c, rank) {
    for (Bytes* tensor : {&t_.residual, &t_.residual_out}) {
      tensor->erase(tensor->begin(), tensor->begin() + static_cast<ptrdiff_t>(slice_.first));
      tensor->resize(slice_.bytes);
    }
  }

  std::string Run(const Tensors& want) {
    qrd_rms_norm norm = QRD_RMS_NORM_INIT;
    norm.tokens = c_.tokens;
    norm.hidden = c_.hidden;
    norm.eps = 1e-5f;
    norm.gemma = c_.gemma ? 1 : 0;
    norm.weight_dtype = static_cast<qrd_dtype>(c_.dtype);
    norm.quant = static_cast<qrd_quant>(c_.quant);
    norm.scale_group = c_.scale_group;
    norm.residual_layout = c_.sharded ? QRD_RESIDUAL_SHARDED : QRD_RESIDUAL_FULL;
    void* input = Place(&t_.input);
    norm.weight = Place(&t_.weight);
    norm.residual_out = Place(&t_.residual_out);
    void* out = c_.in_place ? input : Place(&t_.out);
    if (c_.residual) norm.residual = Place(&t_.residual);
    if (c_.quant == Quant::kNone) norm.out = out;
    if (c_.quant != Quant::kNone) {
      norm.out8 = static_cast<uint8_t*>(Place(&t_.out8));
      norm.scales = static_cast<float*>(Place(&t_.scales));
      if (c_.mirror) norm.mirror = out;
    }
    if (!error_.empty()) return error_;
    qrd_operation operation = 0;
    std::string error = Outcome(
        qrd_all_reduce_rms_norm(comm_, input, static_cast<qrd_dtype>(c_.dtype), &norm, &operation));
    if (error.empty()) error = Outcome(qrd_wait(comm_, operation, 0, nullptr));
    if (!error.empty()) return error;
    const auto compare = [&](const char* name, const void* got, const Bytes& expected) {
      if (error.empty() && !expected.empty() &&
          std::memcmp(got, expected.data(), expected.size()) != 0) {
        error = std::string(name) + " differs";
      }
    };
    const auto own = want.residual_out.begin() + static_cast<ptrdiff_t>(slice_.first);
    compare("residual_out", norm.residual_out,
            Bytes(own, own + static_cast<ptrdiff_t>(slice_.bytes)));
    if (norm.out != nullptr) compare("out", norm.out, want.out);
    if (norm.mirror != nullptr) compare("mirror", norm.mirror, want.out);
    if (norm.out8 != nullptr) compare("out8", norm.out8, want.out8);
    if (norm.scales != nullptr) compare("scales", norm.scales, want.scales);
    for (void* memory : placed_) qrd_mem_free(comm_, memory);
    return error;
  }

 private:
  void* Place(Bytes* bytes) {
    if (bytes->empty()) return nullptr;
    if (c_.own_memory) return bytes->data();
    void* memory = nullptr;
    const std::string error = Outcome(qrd_mem_alloc(comm_, bytes->size(), &memory));
    if (error.empty()) std::memcpy(memory, bytes->data(), bytes->size());
    if (error_.empty()) error_ = error;
    placed_.push_back(memory);
    return memory;
  }

  const qrd_comm_t comm_;
  const NormCase& c_;
  const NormCase::Slice slice_;
  Tensors t_;
  std::string error_;
  std::vector<void*> placed_;
};

constexpr NormCase kCases[] = {
    {Dtype::kBf16, 12, 6144, Quant::kNone, true, false, false, false, false, 0},
    {Dtype::kFp16, 5, 2880, Quant::kNone, false, false, true, true, false, 0},
    {Dtype::kBf16, 7, 6160, Quant::kE4m3fn, true, true, false, false, false, 0},
    {Dtype::kFp16, 3, 6176, Quant::kE4m3fnuz, true, false, false, false, true, 128},
    {Dtype::kBf16, 1, 8, Quant::kE4m3fn, true, true, true, true, true, 0},
    {Dtype::kBf16, 13, 6160, Quant::kE4m3fn, true, true, false, true, false, 0, true},
    {Dtype::kFp16, 8, 200, Quant::kNone, false, false, true, false, true, 0, true},
    // One of three ranks has no rows.
    {Dtype::kBf16, 2, 136, Quant::kE4m3fnuz, true, false, false, false, false, 128, true},
    {Dtype::kBf16, 2, 136, Quant::kNone, true, false, false, true, true, 0, true},
};

class ServedRmsNormTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(daemon_.Start(), ""); }
  DaemonProcess daemon_;
};

TEST_F(ServedRmsNormTest, EveryRankHasTheBytesOfTheReference) {
  for (const auto& [codec, algorithm] :
       {std::pair{Codec::kNone, Algorithm::kTwoShot}, std::pair{Codec::kInt4, Algorithm::kTwoShot},
        std::pair{Codec::kLp3, Algorithm::kOneShot}}) {
    ASSERT_EQ(RunProgram(Qrctl(), {"--runtime-directory", daemon_.runtime_directory(), "policy",
                                   "set", "--codec", std::string(Name(codec)), "--algorithm",
                                   std::string(Name(algorithm))})
                  .exit_code,
              0);
    std::vector<Tensors> want;
    for (const NormCase& c : kCases) want.push_back(Want(c, 3, codec, algorithm));
    EXPECT_THAT(RunRanks(3,
                         [&](RankProcess& self) {
                           std::string error;
                           qrd_comm_t comm =
                               Attach(daemon_.runtime_directory(), self.rank(), 3, &error);
                           for (size_t i = 0; error.empty() && i < want.size(); ++i) {
                             error = NormRank(comm, kCases[i], self.rank(), 3).Run(want[i]);
                             if (!error.empty()) error = "case " + std::to_string(i) + ": " + error;
                           }
                           qrd_comm_finalize(comm);
                           return error;
                         }),
                Each(IsEmpty()))
        << Name(codec);
  }
}

// Section 5: nobody waits, and the field is named on all ranks.
TEST_F(ServedRmsNormTest, OptionsThatDifferFailOnAllRanks) {
  const auto body = [&](RankProcess& self) -> std::string {
    std::string error;
    qrd_comm_t comm = Attach(daemon_.runtime_directory(), self.rank(), 2, &error);
    if (comm == nullptr) return error;
    void* memory = nullptr;
    error = Outcome(qrd_mem_alloc(comm, 65536, &memory));
    auto* base = static_cast<std::byte*>(memory);
    const bool other = self.rank() == 1;
    struct Edit {
      const char* field;
      void (*apply)(qrd_rms_norm*, std::byte*);
    };
    const Edit edits[] = {
        {"count", [](qrd_rms_norm* n, std::byte*) { n->tokens = 1; }},
        {"tokens", [](qrd_rms_norm* n, std::byte*) { n->tokens = 4, n->hidden = 64; }},
        {"eps", [](qrd_rms_norm* n, std::byte*) { n->eps = 0.25f; }},
        {"gemma", [](qrd_rms_norm* n, std::byte*) { n->gemma = 1; }},
        {"weight_dtype", [](qrd_rms_norm* n, std::byte*) { n->weight_dtype = QRD_FP32; }},
        {"divisor", [](qrd_rms_norm* n, std::byte*) { n->divisor = 100; }},
        {"quant", [](qrd_rms_norm* n, std::byte*) { n->quant = QRD_E4M3FNUZ; }},
        {"scale_group", [](qrd_rms_norm* n, std::byte*) { n->scale_group = 128; }},
        {"residual_layout",
         [](qrd_rms_norm* n, std::byte*) { n->residual_layout = QRD_RESIDUAL_SHARDED; }},
        {"residual", [](qrd_rms_norm* n, std::byte*) { n->residual = nullptr; }},
        {"mirror", [](qrd_rms_norm* n, std::byte*) { n->mirror = nullptr; }},
    };
    for (const Edit& edit : edits) {
      qrd_rms_norm norm = QRD_RMS_NORM_INIT;
      norm.tokens = 2;
      norm.hidden = 128;
      norm.quant = QRD_E4M3FN;
      norm.weight = base;
      norm.residual = base + 4096;
      norm.residual_out = base + 8192;
      norm.out8 = reinterpret_cast<uint8_t*>(base + 12288);
      norm.scales = reinterpret_cast<float*>(base + 16384);
      norm.mirror = base + 20480;
      if (other) edit.apply(&norm, base);
      qrd_operation operation = 0;
      std::string outcome =
          Outcome(qrd_all_reduce_rms_norm(comm, base + 24576, QRD_BF16, &norm, &operation));
      if (outcome.empty()) outcome = Outcome(qrd_wait(comm, operation, 0, nullptr));
      if (outcome.find(std::string(": ") + edit.field + " is ") == std::string::npos ||
          outcome.find("MISMATCH") != 0) {
        error += std::string(edit.field) + " gave " + outcome + "; ";
      }
    }
    qrd_comm_finalize(comm);
    return error;
  };
  EXPECT_THAT(RunRanks(2, body), Each(IsEmpty()));
}

// The policy may say one_shot: a row's owner does its epilogue, which is two_shot, and the
// statistics say so, with the bytes of that layout.
TEST_F(ServedRmsNormTest, AShardedResidualIsTwoShotWhateverThePolicySays) {
  ASSERT_EQ(RunProgram(Qrctl(), {"--runtime-directory", daemon_.runtime_directory(), "policy",
                                 "set", "--codec", "int4", "--algorithm", "one_shot"})
                .exit_code,
            0);
  const auto body = [&](RankProcess& self) -> std::string {
    std::string error;
    qrd_comm_t comm = Attach(daemon_.runtime_directory(), self.rank(), 2, &error);
    if (comm == nullptr) return error;
    void* memory = nullptr;
    error = Outcome(qrd_mem_alloc(comm, 65536, &memory));
    auto* base = static_cast<std::byte*>(memory);
    std::memset(base, 0, 65536);
    uint64_t first = 0, count = 0;
    if (error.empty()) error = Outcome(qrd_owned_rows(comm, 3, &first, &count));
    if (first != (self.rank() == 0 ? 0u : 2u) || count != (self.rank() == 0 ? 2u : 1u)) {
      error += "owned rows " + std::to_string(first) + ", " + std::to_string(count);
    }
    qrd_rms_norm norm = QRD_RMS_NORM_INIT;
    norm.tokens = 3;
    norm.hidden = 2048;
    norm.weight = base;
    norm.residual_out = base + 4096;
    norm.out = base + 16384;
    norm.residual_layout = QRD_RESIDUAL_SHARDED;
    qrd_operation operation = 0;
    qrd_op_stats stats = QRD_OP_STATS_INIT;
    if (error.empty()) {
      error = Outcome(qrd_all_reduce_rms_norm(comm, base + 32768, QRD_BF16, &norm, &operation));
    }
    if (error.empty()) error = Outcome(qrd_wait(comm, operation, 0, &stats));
    const uint64_t others = 3 - count;
    if (stats.algorithm != QRD_TWO_SHOT || stats.wire_bytes != others * 1152 + count * 4096) {
      error += "algorithm " + std::to_string(stats.algorithm) + ", wire_bytes " +
               std::to_string(stats.wire_bytes);
    }
    qrd_comm_finalize(comm);
    return error;
  };
  EXPECT_THAT(RunRanks(2, body), Each(IsEmpty()));
}

}  // namespace
}  // namespace qrd::testing
