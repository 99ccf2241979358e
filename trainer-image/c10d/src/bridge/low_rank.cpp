// The arithmetic of PowerSGD. All ranks must compute the same bits from a sum, so these
// computations use only operations whose result does not depend on the number of threads or on the
// vector unit: see orthogonalize() and decode().
#include "low_rank.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

namespace {
// If removing the earlier columns leaves less than this fraction of a column's length, it is
// rounding noise.
constexpr double kLeast = 1e-6;

// Rounds 64-bit sums to 32 bits: the order of a sum changes only the last bits of 64.
at::Tensor rounded(const at::Tensor& sums) {
  return sums.to(at::kFloat).to(at::kDouble);
}

at::Tensor length_of(const at::Tensor& column) {
  return rounded(column.square().sum(1, /*keepdim=*/true).sqrt());
}

// Makes the columns of each matrix of [matrices, rows, columns] orthonormal, by Gram-Schmidt in 64
// bits, twice per column (Giraud et al. 2005: twice is enough). A column that depends on earlier
// columns becomes 0. NaN and infinity are preserved.
void orthogonalize(const at::Tensor& matrices) {
  const auto wide = matrices.to(at::kDouble);
  for (int64_t i = 0; i < wide.size(2); i++) {
    auto column = wide.narrow(2, i, 1);
    const auto before = length_of(column);
    const auto others = wide.narrow(2, 0, i);
    for (int again = 0; again < 2 && i > 0; again++)
      column.sub_((others * rounded((others * column).sum(1, /*keepdim=*/true))).sum(2, /*keepdim=*/true));
    const auto length = length_of(column);
    const auto is_noise = length.le(before * kLeast).logical_and_(before.isfinite());
    // at::where with a number of the host would make the host wait for a GPU.
    column.div_(length).masked_fill_(is_noise, 0.0);
  }
  matrices.copy_(wide);
}

// p · qᵀ as products of single numbers that are added in a fixed order.
void decode(at::Tensor& matrix, const at::Tensor& p, const at::Tensor& q) {
  at::mul_out(matrix, p.narrow(1, 0, 1), q.narrow(1, 0, 1).t());
  for (int64_t i = 1; i < p.size(1); i++) matrix.add_(p.narrow(1, i, 1) * q.narrow(1, i, 1).t());
}

int64_t num_columns(const at::Tensor& gradient, const RhPowerSgd& options) {
  const auto type = gradient.scalar_type();
  if (gradient.dim() < 2 || gradient.numel() == 0 || (type != at::kFloat && type != at::kDouble)) return 0;
  return rh_power_sgd_columns(gradient.size(0), gradient.numel() / gradient.size(0), options.rank, options.min_compression_rate);
}
} // namespace

extern "C" int64_t rh_power_sgd_columns(int64_t rows, int64_t cols, int64_t rank, int64_t min_compression_rate) {
  const int64_t columns = std::min({rows, cols, rank});
  return (rows + cols) * columns * min_compression_rate < rows * cols ? columns : 0;
}

LowRankBucket::LowRankBucket(
    const std::vector<at::Tensor>& gradients, const std::vector<bool>& is_whole, const RhPowerSgd& options, uint64_t seed) {
  for (size_t place = 0; place < gradients.size(); place++) {
    const auto& gradient = gradients[place];
    shapes_.push_back(gradient.sizes().vec());
    const int64_t columns = is_whole[place] ? 0 : num_columns(gradient, options);
    if (columns == 0) {
      whole_.push_back(place);
      num_whole_ += gradient.numel();
      continue;
    }
    const int64_t rows = gradient.size(0), cols = gradient.numel() / rows;
    const auto is_alike = [&](const Group& group) { return group.rows == rows && group.cols == cols; };
    auto group = std::find_if(groups_.begin(), groups_.end(), is_alike);
    if (group == groups_.end()) group = groups_.insert(group, Group{rows, cols, columns, {}, {}, {}, {}, {}});
    group->places.push_back(place);
    group->errors.push_back(at::zeros({rows, cols}, gradient.options()));
  }
  int64_t num_first = num_whole_, num_second = 0;
  for (const auto& group : groups_) {
    const auto count = static_cast<int64_t>(group.places.size());
    num_first += count * group.rows * group.columns;
    num_second += count * group.cols * group.columns;
  }
  const auto options_of_all = gradients[0].options();
  first_ = at::empty({num_first}, options_of_all);
  second_ = at::empty({num_second}, options_of_all);
  // Drawn on the CPU, so that all kinds of devices start with the same numbers.
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const bool is_cpu = options_of_all.device().is_cpu();
  int64_t p_offset = num_whole_, q_offset = 0;
  for (auto& group : groups_) {
    const auto count = static_cast<int64_t>(group.places.size());
    const auto view = [&](at::Tensor& memory, int64_t& offset, int64_t rows) {
      const auto part = memory.narrow(0, offset, count * rows * group.columns).view({count, rows, group.columns});
      offset += part.numel();
      return part;
    };
    group.p = view(first_, p_offset, group.rows);
    group.q = view(second_, q_offset, group.cols);
    const auto type = at::TensorOptions().dtype(options_of_all.dtype());
    auto drawn = at::empty({count, group.cols, group.columns}, type.pinned_memory(!is_cpu));
    for (int64_t i = 0; i < count; i++) drawn[i].copy_(at::randn({group.cols, group.columns}, generator, type));
    group.first_q = drawn.to(options_of_all.device(), /*non_blocking=*/true);
  }
  forget();
}

bool LowRankBucket::fits(const std::vector<at::Tensor>& gradients) const {
  const auto is_alike = [](const at::Tensor& gradient, const std::vector<int64_t>& shape) { return gradient.sizes() == shape; };
  return std::equal(gradients.begin(), gradients.end(), shapes_.begin(), shapes_.end(), is_alike);
}

at::Tensor LowRankBucket::matrix(const Group& group, size_t i) const {
  return gradients_[group.places[i]].view({group.rows, group.cols});
}

void LowRankBucket::compress(std::vector<at::Tensor> gradients) {
  gradients_ = std::move(gradients);
  int64_t offset = 0;
  for (const size_t place : whole_) {
    const auto& gradient = gradients_[place];
    first_.narrow(0, offset, gradient.numel()).copy_(gradient.view({-1}));
    offset += gradient.numel();
  }
  for (auto& group : groups_) {
    // A column of 0 would stay 0, so replace it by its first random values.
    group.q.copy_(at::where(group.q.eq(0).all(1, /*keepdim=*/true), group.first_q, group.q));
    orthogonalize(group.q);
    for (size_t i = 0; i < group.places.size(); i++) {
      auto own = matrix(group, i);
      own.add_(group.errors[i]);
      auto p = group.p[static_cast<int64_t>(i)];
      at::mm_out(p, own, group.q[static_cast<int64_t>(i)]);
    }
  }
}

void LowRankBucket::project() {
  for (auto& group : groups_) {
    orthogonalize(group.p);
    for (size_t i = 0; i < group.places.size(); i++) {
      auto q = group.q[static_cast<int64_t>(i)];
      at::mm_out(q, matrix(group, i).t(), group.p[static_cast<int64_t>(i)]);
    }
  }
}

void LowRankBucket::restore(int num_ranks) {
  first_.narrow(0, 0, num_whole_).div_(num_ranks);
  int64_t offset = 0;
  for (const size_t place : whole_) {
    const auto& gradient = gradients_[place];
    gradient.copy_(first_.narrow(0, offset, gradient.numel()).view(gradient.sizes()));
    offset += gradient.numel();
  }
  second_.div_(num_ranks);
  for (auto& group : groups_) {
    for (size_t i = 0; i < group.places.size(); i++) {
      auto mean = matrix(group, i);
      group.errors[i].copy_(mean);
      decode(mean, group.p[static_cast<int64_t>(i)], group.q[static_cast<int64_t>(i)]);
      group.errors[i].sub_(mean);
    }
  }
  gradients_.clear();
}

void LowRankBucket::forget() {
  for (auto& group : groups_) {
    group.q.copy_(group.first_q);
    for (auto& error : group.errors) error.zero_();
  }
}

void LowRankBucket::rescale(double factor) {
  for (auto& group : groups_)
    for (auto& error : group.errors) error.mul_(factor);
}
