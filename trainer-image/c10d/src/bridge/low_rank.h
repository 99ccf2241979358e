// Gradients of a bucket as products of two narrow matrices: the arithmetic of PowerSGD (Vogels et al., NeurIPS 2019),
// algorithm 1 with error feedback (algorithm 2) and warm start. It calls no collective.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "guard.h"

extern "C" {
// As PowerSgd in Rust.
struct RhPowerSgd {
  int64_t rank, min_compression_rate;
  uint64_t plain_passes, seed;
};

// How many columns the factors of a matrix have; 0: the matrix travels whole.
int64_t rh_power_sgd_columns(int64_t rows, int64_t cols, int64_t rank, int64_t min_compression_rate);
}

// What a rank keeps of one bucket from pass to pass. Each pass, in this order: compress(), sum first() over the ranks,
// project(), sum second() over the ranks if it has elements, restore().
class LowRankBucket {
 public:
  // `is_whole`: of each gradient, whether it must travel uncompressed. `seed` is the same on all ranks.
  LowRankBucket(const std::vector<at::Tensor>& gradients, const std::vector<bool>& is_whole, const RhPowerSgd& options, uint64_t seed);

  // Whether it was made for gradients of these shapes.
  bool fits(const std::vector<at::Tensor>& gradients) const;

  // Adds to this rank's gradients what earlier passes have left over, and fills first(). Keeps the gradients until
  // restore().
  void compress(std::vector<at::Tensor> gradients);

  // From the sum in first() to this rank's part of second().
  void project();

  // From both sums to the mean over the ranks, in the gradients; what the mean lacks of this rank's own is kept.
  void restore(int num_ranks);

  at::Tensor& first() { return first_; }
  at::Tensor& second() { return second_; }

  // As after construction.
  void forget();

  // The gradients of the next pass are larger by this factor than those before.
  void rescale(double factor);

 private:
  // Matrices of one shape: their factors lie one after the other, so that all are made orthogonal at once.
  struct Group {
    int64_t rows, cols, columns;
    std::vector<size_t> places; // in the bucket
    at::Tensor p, q; // [matrices, rows, columns] in first_, [matrices, cols, columns] in second_
    at::Tensor first_q; // random, what q begins with
    std::vector<at::Tensor> errors; // [rows, cols] each
  };

  at::Tensor matrix(const Group& group, size_t i) const;

  std::vector<at::Tensor> gradients_;
  std::vector<std::vector<int64_t>> shapes_;
  std::vector<size_t> whole_; // places of the gradients that travel uncompressed, at the beginning of first_
  int64_t num_whole_ = 0; // elements
  std::vector<Group> groups_;
  at::Tensor first_, second_;
};
