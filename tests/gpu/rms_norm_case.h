// SPDX-License-Identifier: Apache-2.0
// All-reduce with RMSNorm with known inputs, and what the scalar reference makes of them: for the
// emulated kernels and for a device.
//
// Thread safety: none; a case belongs to one thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/epilogue.h"
#include "kernels/reference.h"
#include "kernels/reference_rms_norm.h"
#include "kernels/types.h"
#include "test_data.h"

namespace qrd::testing {

// What the sum with the residual depends on.
struct RmsNormShape {
  Codec codec = Codec::kNone;
  Algorithm algorithm = Algorithm::kTwoShot;
  Dtype dtype = Dtype::kBf16;
  uint32_t world_size = 2;
  uint64_t tokens = 1;
  uint32_t hidden = 8;
  uint32_t seed = 1;
  bool has_residual = true;
  bool residuals_differ = false;  // every rank has its own
  bool special_rows = false;      // zeros, NaN, Inf, one huge value, ...
  bool sharded = false;           // residual and residual_out have the rank's own rows only

  // Elements of residual and residual_out that a rank has, of all.
  RowRange ResidualElements(uint32_t rank) const {
    const RowRange rows = sharded ? OwnedRows(tokens, world_size, rank) : RowRange{0, tokens};
    return {rows.first * hidden, rows.last * hidden};
  }
  uint64_t count() const { return tokens * hidden; }
  std::string Describe() const {
    return std::string(Name(codec)) + " " + std::string(Name(algorithm)) + " " +
           std::string(Name(dtype)) + " N " + std::to_string(world_size) + " [" +
           std::to_string(tokens) + "," + std::to_string(hidden) + "]" +
           (has_residual ? "" : " no residual") + (residuals_differ ? " own residuals" : "") +
           (sharded ? " sharded" : "") + " seed " + std::to_string(seed);
  }
};

// The rest.
struct RmsNormOptions {
  bool gemma = false;
  bool weight_is_fp32 = false;
  Quant quant = Quant::kNone;
  uint32_t scale_group = 0;
  float divisor = 0;
  bool mirror = false;
  bool norm_over_input = false;        // out or mirror is the input
  bool residual_out_in_place = false;  // residual_out is the residual
  float eps = 1e-6f;

  bool has_normed() const { return quant == Quant::kNone || mirror; }
  uint64_t ScalesOfRow(uint32_t hidden) const {
    return scale_group == 0 ? 1 : (hidden + scale_group - 1) / scale_group;
  }
  std::string Describe() const {
    return std::string(gemma ? " gemma" : " plain") + (weight_is_fp32 ? " fp32 weight " : " ") +
           std::string(Name(quant)) + (scale_group != 0 ? " groups" : "") +
           (divisor != 0 ? " divisor " + std::to_string(divisor) : "") + (mirror ? " mirror" : "") +
           (norm_over_input ? " over input" : "") +
           (residual_out_in_place ? " residual in place" : "");
  }
};

// Host side: inputs and results.
class RmsNormData {
 public:
  struct Want {
    Bytes normed, codes, scales;
  };

  explicit RmsNormData(const RmsNormShape& shape) : shape_(shape) {
    const uint32_t distinct = shape.residuals_differ ? shape.world_size : 1;
    for (uint32_t r = 0; r < shape.world_size; ++r) inputs_.push_back(MakeActivations(r, 0.7f));
    for (uint32_t r = 0; r < distinct && shape.has_residual; ++r) {
      residuals_.push_back(MakeActivations(100 + r, 2));
    }
    std::mt19937 random(shape.seed + 7777);
    std::normal_distribution<float> normal(0.75f, 0.25f);
    weight32_.resize(shape.hidden);
    for (float& w : weight32_) w = normal(random);
    weight16_.resize(shape.hidden * 2);
    ReferenceRoundToDtype(shape.dtype, weight32_.data(), shape.hidden, weight16_.data());
    std::vector<const void*> pointers;
    for (const Bytes& input : inputs_) pointers.push_back(input.data());
    Bytes reduced(shape.count() * 2);
    if (shape.sharded) {
      MakeOwnersSums(pointers, &reduced);
      return;
    }
    ReferenceAllReduce(shape.codec, shape.algorithm, shape.dtype, ReduceOp::kSum, shape.world_size,
                       shape.count(), pointers.data(), reduced.data());
    for (uint32_t r = 0; r < distinct; ++r) {
      sums_.emplace_back(reduced.size());
      ReferenceAdd(shape.dtype, shape.count(), reduced.data(), residual(r), sums_.back().data());
    }
  }

  Want Of(const RmsNormOptions& options, uint32_t rank) const {
    const RmsNormShape& s = shape_;
    Want want;
    want.normed.resize(s.count() * 2);
    ReferenceRmsNorm(
        {s.dtype, s.hidden, options.eps, options.gemma, weight_dtype(options), weight(options)},
        s.tokens, sum(rank).data(), want.normed.data());
    if (options.quant == Quant::kNone) return want;
    want.codes.resize(s.count());
    want.scales.resize(s.tokens * options.ScalesOfRow(s.hidden) * 4);
    ReferenceQuantizeFp8(s.dtype, s.tokens, s.hidden, options.quant, options.scale_group,
                         options.divisor, want.normed.data(),
                         reinterpret_cast<uint8_t*>(want.codes.data()),
                         reinterpret_cast<float*>(want.scales.data()));
    return want;
  }

  const RmsNormShape& shape() const { return shape_; }
  const Bytes& input(uint32_t rank) const { return inputs_[rank]; }
  const void* residual(uint32_t rank) const {
    if (residuals_.empty()) return nullptr;
    return residuals_[shape_.residuals_differ ? rank : 0].data();
  }
  // Of all rows; sharded: each row as its owner has it.
  const Bytes& sum(uint32_t rank) const { return sums_[sums_.size() == 1 ? 0 : rank]; }
  const void* weight(const RmsNormOptions& options) const {
    return options.weight_is_fp32 ? static_cast<const void*>(weight32_.data()) : weight16_.data();
  }
  Dtype weight_dtype(const RmsNormOptions& options) const {
    return options.weight_is_fp32 ? Dtype::kFp32 : shape_.dtype;
  }

 private:
  void MakeOwnersSums(const std::vector<const void*>& inputs, Bytes* reduced) {
    sums_.emplace_back(reduced->size());
    for (uint32_t owner = 0; owner < shape_.world_size; ++owner) {
      ReferenceReduceAtOwner(shape_.codec, shape_.dtype, shape_.world_size, shape_.count(),
                             inputs.data(), owner, reduced->data());
      Bytes sum(reduced->size());
      ReferenceAdd(shape_.dtype, shape_.count(), reduced->data(), residual(owner), sum.data());
      const RowRange own = shape_.ResidualElements(owner);
      std::copy(sum.begin() + static_cast<ptrdiff_t>(own.first * 2),
                sum.begin() + static_cast<ptrdiff_t>(own.last * 2),
                sums_[0].begin() + static_cast<ptrdiff_t>(own.first * 2));
    }
  }
  // N(0, amplitude) with some large channels; every tenth row special if asked for.
  Bytes MakeActivations(uint32_t salt, float amplitude) const {
    std::mt19937 random(shape_.seed * 131 + salt);
    std::normal_distribution<float> normal;
    // Numbers are drawn once a period: large tensors would take seconds.
    std::vector<float> period(std::min<uint64_t>(shape_.count(), 1'000'003));
    for (float& value : period) value = normal(random) * amplitude;
    std::vector<float> values(shape_.count());
    for (uint64_t i = 0; i < values.size(); ++i) {
      values[i] = period[i % period.size()] * (i % shape_.hidden % 251 == 17 ? 20.0f : 1.0f);
    }
    for (uint64_t row = 0; shape_.special_rows && row < shape_.tokens; ++row) {
      MakeSpecial(row, salt, &values[row * shape_.hidden]);
    }
    Bytes tensor(shape_.count() * 2);
    ReferenceRoundToDtype(shape_.dtype, values.data(), values.size(), tensor.data());
    return tensor;
  }
  // The largest column is one of the last, where partial waves are.
  void MakeSpecial(uint64_t row, uint32_t salt, float* values) const {
    const bool is_fp16 = shape_.dtype == Dtype::kFp16, is_residual = salt >= 100;
    float& last = values[shape_.hidden - 1 - row % 8];
    float& middle = values[shape_.hidden / 2];
    switch (row % 10) {
      case 1:
        std::fill_n(values, shape_.hidden, 0.0f);
        break;
      case 2:
        std::fill_n(values, shape_.hidden, -0.0f);
        break;
      case 3:
        if (salt == 1) middle = NAN;
        break;
      case 4:
        if (is_residual) last = -INFINITY;
        break;
      case 5:
        last = is_fp16 ? 30000.0f : -0x1p21f;
        break;
      case 6:
        for (uint32_t i = 0; i < shape_.hidden; ++i) values[i] *= is_fp16 ? 0x1p-22f : 0x1p-129f;
        break;
      case 7:
        if (salt == 0) middle = is_fp16 ? 60000.0f : 1e20f;
        break;
      case 8:
        last = is_fp16 ? 60000.0f : 3e38f;  // the sum overflows
        break;
      default:
        break;
    }
  }

  const RmsNormShape shape_;
  std::vector<Bytes> inputs_, residuals_, sums_;
  std::vector<float> weight32_;
  Bytes weight16_;
};

// Tensors of all ranks in memory of the kind Buffer: Buffer(bytes), data(), bytes(), Upload(),
// Fill(), Download(), GuardsAreIntact().
template <typename Buffer>
class RmsNormTensors {
 public:
  using Check = std::function<void(bool passed, const std::string& what)>;

  explicit RmsNormTensors(const RmsNormShape& shape) : shape_(shape) {
    const uint64_t count = shape.count();
    for (uint32_t r = 0; r < shape.world_size; ++r) {
      inputs_.emplace_back(count * 2);
      residuals_.emplace_back(count * 2);
      sums_.emplace_back(count * 2);
      normed_.emplace_back(count * 2);
      codes_.emplace_back(count);
      scales_.emplace_back(shape.tokens * ((shape.hidden + 127) / 128) * 4);
      weights_.emplace_back(uint64_t{shape.hidden} * 4);
    }
  }

  // Inputs as in `data`, outputs with a pattern.
  void Upload(const RmsNormData& data, const RmsNormOptions& options) const {
    for (uint32_t r = 0; r < shape_.world_size; ++r) {
      inputs_[r].Upload(data.input(r).data());
      if (data.residual(r) == nullptr) continue;
      const RowRange own = shape_.ResidualElements(r);
      UploadPart(residuals_[r], static_cast<const std::byte*>(data.residual(r)) + own.first * 2,
                 (own.last - own.first) * 2);
    }
    Prepare(data, options);
  }
  // The same where inputs and residuals are as they were.
  void Prepare(const RmsNormData& data, const RmsNormOptions& options) const {
    for (uint32_t r = 0; r < shape_.world_size; ++r) {
      UploadPart(weights_[r], data.weight(options),
                 shape_.hidden * DtypeBytes(data.weight_dtype(options)));
      for (const Buffer* output : {&sums_[r], &normed_[r], &codes_[r], &scales_[r]}) {
        output->Fill(0x5A);
      }
    }
  }
  static void UploadPart(const Buffer& buffer, const void* from, uint64_t bytes) {
    Bytes all(buffer.bytes());
    std::memcpy(all.data(), from, bytes);
    buffer.Upload(all.data());
  }

  LaunchParams Params(const RmsNormOptions& options) const {
    LaunchParams params;
    params.codec = shape_.codec;
    params.algorithm = shape_.algorithm;
    params.dtype = shape_.dtype;
    params.world_size = shape_.world_size;
    params.count = shape_.count();
    params.epilogue = Epilogue::kRmsNorm;
    RmsNormParams& p = params.rms_norm;
    p.tokens = shape_.tokens;
    p.hidden = shape_.hidden;
    p.eps = options.eps;
    p.gemma = options.gemma;
    p.weight_dtype = options.weight_is_fp32 ? Dtype::kFp32 : shape_.dtype;
    p.quant = options.quant;
    p.scale_group = options.scale_group;
    p.divisor = options.divisor;
    p.residual_layout = shape_.sharded ? ResidualLayout::kSharded : ResidualLayout::kFull;
    for (uint32_t r = 0; r < shape_.world_size; ++r) {
      params.inputs[r] = inputs_[r].data();
      p.residual[r] = shape_.has_residual ? residuals_[r].data() : nullptr;
      p.weight[r] = weights_[r].data();
      p.residual_out[r] = Sum(options, r).data();
      void* normed = Normed(options, r).data();
      if (options.quant == Quant::kNone) {
        p.out[r] = normed;
        continue;
      }
      p.mirror[r] = options.mirror ? normed : nullptr;
      p.out8[r] = reinterpret_cast<uint8_t*>(codes_[r].data());
      p.scales[r] = reinterpret_cast<float*>(scales_[r].data());
    }
    return params;
  }

  // All ranks have the results, and nothing else was written.
  void CheckResults(const RmsNormData& data, const RmsNormOptions& options, const std::string& what,
                    const Check& check) const {
    RmsNormData::Want want;
    for (uint32_t r = 0; r < shape_.world_size; ++r) {
      if (r == 0 || (shape_.residuals_differ && !shape_.sharded)) want = data.Of(options, r);
      const auto where = [&](const char* tensor) {
        return std::string(tensor) + " " + what + " " + shape_.Describe() + options.Describe() +
               " rank " + std::to_string(r);
      };
      check(HasOwnRows(Sum(options, r).Download(), data.sum(r), r, SumFill(options)),
            where("residual_out"));
      if (options.has_normed()) {
        check(Normed(options, r).Download() == want.normed, where("norm"));
      }
      if (options.quant != Quant::kNone) {
        Bytes scales = scales_[r].Download();
        scales.resize(want.scales.size());
        check(scales == want.scales, where("scales"));
        check(codes_[r].Download() == want.codes, where("out8"));
      }
      if (!options.norm_over_input) {
        check(inputs_[r].Download() == data.input(r), where("input"));
      }
      bool intact = true;
      for (const Buffer* tensor : {&inputs_[r], &residuals_[r], &sums_[r], &normed_[r], &codes_[r],
                                   &scales_[r], &weights_[r]}) {
        intact = tensor->GuardsAreIntact() && intact;
      }
      check(intact, where("bytes around"));
    }
  }
  const Buffer& Sum(const RmsNormOptions& options, uint32_t rank) const {
    return (options.residual_out_in_place && shape_.has_residual ? residuals_ : sums_)[rank];
  }
  const Buffer& Normed(const RmsNormOptions& options, uint32_t rank) const {
    return (options.norm_over_input ? inputs_ : normed_)[rank];
  }
  const Buffer& Input(uint32_t rank) const { return inputs_[rank]; }
  const Buffer& Residual(uint32_t rank) const { return residuals_[rank]; }
  const Buffer& Weight(uint32_t rank) const { return weights_[rank]; }
  const Buffer& Codes(uint32_t rank) const { return codes_[rank]; }
  const Buffer& Scales(uint32_t rank) const { return scales_[rank]; }

 private:
  // What is behind the own rows in a tensor of residual_out.
  std::byte SumFill(const RmsNormOptions& options) const {
    return options.residual_out_in_place && shape_.has_residual ? std::byte{0} : std::byte{0x5A};
  }
  // The own rows of `all`, then nothing that was written.
  bool HasOwnRows(const Bytes& tensor, const Bytes& all, uint32_t rank, std::byte fill) const {
    const RowRange own = shape_.ResidualElements(rank);
    const auto rows = static_cast<ptrdiff_t>((own.last - own.first) * 2);
    return std::equal(tensor.begin(), tensor.begin() + rows,
                      all.begin() + static_cast<ptrdiff_t>(own.first * 2)) &&
           std::all_of(tensor.begin() + rows, tensor.end(), [&](std::byte b) { return b == fill; });
  }

  const RmsNormShape shape_;
  std::vector<Buffer> inputs_, residuals_, sums_, normed_, codes_, scales_, weights_;
};

}  // namespace qrd::testing
