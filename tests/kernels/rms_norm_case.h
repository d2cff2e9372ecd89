// SPDX-License-Identifier: Apache-2.0
// One all-reduce with RMSNorm of a test: tensors of all ranks with guard bytes around the outputs,
// the run through a backend or the scalar reference, and the comparison of two results.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "collective_case.h"
#include "kernels/backend.h"
#include "kernels/epilogue.h"
#include "kernels/reference_rms_norm.h"
#include "kernels/types.h"

namespace qrd::testing {

struct RmsNormShape {
  Codec codec = Codec::kNone;
  Algorithm algorithm = Algorithm::kTwoShot;
  Dtype dtype = Dtype::kBf16;
  Dtype weight_dtype = Dtype::kBf16;
  uint32_t world_size = 2;
  uint64_t tokens = 1;
  uint32_t hidden = 8;
  float eps = 1e-6f;
  bool gemma = false;
  Quant quant = Quant::kNone;
  uint32_t scale_group = 0;
  float divisor = 0;
  bool mirror = false;
  bool has_residual = true;
  bool residual_in_place = false;  // residual_out is residual
  bool output_in_place = false;    // out or mirror is the input
  uint64_t offset_bytes = 0;       // of every tensor from a cache line; a multiple of 16
  ResidualLayout residual_layout = ResidualLayout::kFull;

  // The rows of residual and residual_out that a rank has.
  RowRange ResidualRows(uint32_t rank) const {
    return residual_layout == ResidualLayout::kFull ? RowRange{0, tokens}
                                                    : OwnedRows(tokens, world_size, rank);
  }
  uint64_t Count() const { return tokens * hidden; }
  uint64_t Groups() const {
    return scale_group == 0 ? 1 : (hidden + scale_group - 1) / scale_group;
  }
  friend std::ostream& operator<<(std::ostream& out, const RmsNormShape& s) {
    return out << Name(s.codec) << ' ' << Name(s.algorithm) << ' ' << Name(s.dtype)
               << " weight_dtype " << Name(s.weight_dtype) << " world_size " << s.world_size << " ["
               << s.tokens << ',' << s.hidden << "] eps " << s.eps << " gemma " << s.gemma
               << " quant " << Name(s.quant) << " scale_group " << s.scale_group << " divisor "
               << s.divisor << " mirror " << s.mirror << " has_residual " << s.has_residual
               << " residual_in_place " << s.residual_in_place << " output_in_place "
               << s.output_in_place << " offset_bytes " << s.offset_bytes << " residual_layout "
               << Name(s.residual_layout);
  }
};

// Contents of the operands. residuals and weights have one tensor for all ranks, or one for each;
// residuals may be empty, and have all rows.
struct RmsNormTensors {
  std::vector<Bytes> inputs;
  std::vector<Bytes> residuals;
  std::vector<Bytes> weights;
};

// Results of one rank; a tensor that the operation does not have is empty.
struct RmsNormResults {
  Bytes residual_out, out, out8, scales, mirror;
  bool operator==(const RmsNormResults&) const = default;
};

// A tensor between guard bytes, and after `offset` bytes.
class GuardedTensor {
 public:
  GuardedTensor(uint64_t bytes, uint64_t offset) : bytes_(bytes), before_(kGuardBytes + offset) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, before_ + bytes + kGuardBytes) != 0) std::abort();
    memory_.reset(static_cast<std::byte*>(memory));
    std::memset(memory, kGuard, before_ + bytes + kGuardBytes);
  }
  std::byte* data() { return memory_.get() + before_; }
  void Set(const Bytes& contents) {
    ASSERT_EQ(contents.size(), bytes_);
    if (bytes_ != 0) std::memcpy(data(), contents.data(), bytes_);
  }
  Bytes Get() { return {data(), data() + bytes_}; }
  bool GuardsAreIntact() {
    const auto intact = [](const std::byte* first, uint64_t bytes) {
      return std::all_of(first, first + bytes, [](std::byte b) { return b == std::byte{kGuard}; });
    };
    return intact(memory_.get(), before_) && intact(data() + bytes_, kGuardBytes);
  }

 private:
  static constexpr uint64_t kGuardBytes = 256;
  static constexpr int kGuard = 0xA5;
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  uint64_t bytes_;
  uint64_t before_;
  std::unique_ptr<std::byte[], Free> memory_;
};

class RmsNormCase {
 public:
  RmsNormCase(const RmsNormShape& shape, const RmsNormTensors& tensors) : shape_(shape) {
    EXPECT_EQ(tensors.inputs.size(), shape.world_size);
    originals_ = tensors;
    SetOptions();
    for (uint32_t r = 0; r < shape.world_size; ++r) AddRank(r, tensors);
  }

  const RmsNormShape& shape() const { return shape_; }
  LaunchParams& params() { return params_; }

  RmsNormResults Results(uint32_t rank) {
    const auto get = [](const std::shared_ptr<GuardedTensor>& tensor) {
      return tensor != nullptr ? tensor->Get() : Bytes();
    };
    const Outputs& o = outputs_[rank];
    return {get(o.residual_out), get(o.out), get(o.out8), get(o.scales), get(o.mirror)};
  }

  // Nothing around the tensors was written, and operands that no output replaces are as they were.
  void ExpectNothingElseWritten() {
    for (const std::shared_ptr<GuardedTensor>& tensor : all_) {
      EXPECT_TRUE(tensor->GuardsAreIntact()) << shape_;
    }
    for (uint32_t r = 0; r < shape_.world_size; ++r) {
      if (!shape_.output_in_place) {
        EXPECT_TRUE(inputs_[r]->Get() == originals_.inputs[r])
            << "input of rank " << r << " of " << shape_;
      }
      if (shape_.has_residual && !shape_.residual_in_place) {
        EXPECT_TRUE(residuals_[r]->Get() == ResidualOf(originals_, r)) << shape_;
      }
    }
  }

 private:
  struct Outputs {
    std::shared_ptr<GuardedTensor> residual_out, out, out8, scales, mirror;
  };

  static const Bytes& OfRank(const std::vector<Bytes>& tensors, uint32_t rank) {
    return tensors.size() == 1 ? tensors[0] : tensors[rank];
  }
  Bytes ResidualOf(const RmsNormTensors& tensors, uint32_t rank) const {
    const Bytes& all = OfRank(tensors.residuals, rank);
    const RowRange rows = shape_.ResidualRows(rank);
    const uint64_t row_bytes = shape_.hidden * DtypeBytes(shape_.dtype);
    return {all.begin() + static_cast<ptrdiff_t>(rows.first * row_bytes),
            all.begin() + static_cast<ptrdiff_t>(rows.last * row_bytes)};
  }
  std::shared_ptr<GuardedTensor> New(uint64_t bytes) {
    all_.push_back(std::make_shared<GuardedTensor>(bytes, shape_.offset_bytes));
    return all_.back();
  }

  void SetOptions() {
    params_.codec = shape_.codec;
    params_.algorithm = shape_.algorithm;
    params_.dtype = shape_.dtype;
    params_.world_size = shape_.world_size;
    params_.count = shape_.Count();
    params_.epilogue = Epilogue::kRmsNorm;
    RmsNormParams& p = params_.rms_norm;
    p.tokens = shape_.tokens;
    p.hidden = shape_.hidden;
    p.eps = shape_.eps;
    p.gemma = shape_.gemma;
    p.weight_dtype = shape_.weight_dtype;
    p.quant = shape_.quant;
    p.scale_group = shape_.scale_group;
    p.divisor = shape_.divisor;
    p.residual_layout = shape_.residual_layout;
  }

  void AddRank(uint32_t r, const RmsNormTensors& tensors) {
    RmsNormParams& p = params_.rms_norm;
    const uint64_t bytes = shape_.Count() * DtypeBytes(shape_.dtype);
    inputs_.push_back(New(bytes));
    inputs_[r]->Set(tensors.inputs[r]);
    params_.inputs[r] = inputs_[r]->data();
    const Bytes& weight = OfRank(tensors.weights, r);
    weights_.push_back(New(weight.size()));
    weights_[r]->Set(weight);
    p.weight[r] = weights_[r]->data();
    Outputs o;
    const RowRange rows = shape_.ResidualRows(r);
    const uint64_t residual_bytes =
        (rows.last - rows.first) * shape_.hidden * DtypeBytes(shape_.dtype);
    if (shape_.has_residual) {
      residuals_.push_back(New(residual_bytes));
      residuals_[r]->Set(ResidualOf(tensors, r));
      p.residual[r] = residuals_[r]->data();
    }
    o.residual_out = shape_.residual_in_place ? residuals_[r] : New(residual_bytes);
    p.residual_out[r] = o.residual_out->data();
    if (residual_bytes == 0) p.residual[r] = p.residual_out[r] = nullptr;
    const auto output = [&] { return shape_.output_in_place ? inputs_[r] : New(bytes); };
    if (shape_.quant == Quant::kNone) {
      o.out = output();
      p.out[r] = o.out->data();
    } else {
      o.out8 = New(shape_.Count());
      p.out8[r] = reinterpret_cast<uint8_t*>(o.out8->data());
      o.scales = New(shape_.tokens * shape_.Groups() * sizeof(float));
      p.scales[r] = reinterpret_cast<float*>(o.scales->data());
      if (shape_.mirror) {
        o.mirror = output();
        p.mirror[r] = o.mirror->data();
      }
    }
    outputs_.push_back(std::move(o));
  }

  const RmsNormShape shape_;
  LaunchParams params_;
  RmsNormTensors originals_;
  std::vector<std::shared_ptr<GuardedTensor>> all_, inputs_, residuals_, weights_;
  std::vector<Outputs> outputs_;
};

// One element that differs, by name and value.
inline void ExpectSameTensor(const char* name, const Bytes& got, const Bytes& want,
                             uint64_t element_bytes, uint64_t row, const std::string& what) {
  if (got == want) return;
  ASSERT_EQ(got.size(), want.size()) << name << ", " << what;
  for (uint64_t at = 0; at < got.size(); at += element_bytes) {
    if (std::memcmp(&got[at], &want[at], element_bytes) == 0) continue;
    uint32_t got_bits = 0, want_bits = 0;
    std::memcpy(&got_bits, &got[at], element_bytes);
    std::memcpy(&want_bits, &want[at], element_bytes);
    const uint64_t i = at / element_bytes;
    ADD_FAILURE() << name << '[' << i / row << ',' << i % row << "] = 0x" << std::hex << got_bits
                  << ", want 0x" << want_bits << std::dec << ": " << what;
    return;
  }
}
inline void ExpectSameResults(const RmsNormShape& shape, const RmsNormResults& got,
                              const RmsNormResults& want, const std::string& what) {
  std::ostringstream text;
  text << what << ", " << shape;
  ExpectSameTensor("residual_out", got.residual_out, want.residual_out, 2, shape.hidden,
                   text.str());
  ExpectSameTensor("out", got.out, want.out, 2, shape.hidden, text.str());
  ExpectSameTensor("mirror", got.mirror, want.mirror, 2, shape.hidden, text.str());
  ExpectSameTensor("scales", got.scales, want.scales, 4, shape.Groups(), text.str());
  ExpectSameTensor("out8", got.out8, want.out8, 1, shape.hidden, text.str());
}

// Results of the scalar reference, by rank.
inline std::vector<RmsNormResults> ReferenceResults(const RmsNormShape& shape,
                                                    const RmsNormTensors& tensors) {
  RmsNormCase reference(shape, tensors);
  ReferenceAllReduceRmsNorm(reference.params());
  reference.ExpectNothingElseWritten();
  std::vector<RmsNormResults> results;
  for (uint32_t r = 0; r < shape.world_size; ++r) results.push_back(reference.Results(r));
  return results;
}

}  // namespace qrd::testing
