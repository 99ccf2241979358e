// Gradients of a bucket as products of two narrow matrices: the arithmetic of PowerSGD (Vogels et
// al., NeurIPS 2019), algorithm 1 with error feedback (algorithm 2) and warm start. It calls no
// collective.
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

// Number of columns of a matrix' factors; 0: the matrix is sent uncompressed.
int64_t rh_power_sgd_columns(int64_t rows, int64_t cols, int64_t rank, int64_t min_compression_rate);
}

// The state that a rank keeps for one bucket between passes. Each pass calls, in this order:
// compress(), sum first() over the ranks, project(), sum second() over the ranks if it has
// elements, restore().
class LowRankBucket {
 public:
  // `is_whole`: for each gradient, whether it must be sent uncompressed. `seed` must be the same on
  // all ranks.
  LowRankBucket(const std::vector<at::Tensor>& gradients, const std::vector<bool>& is_whole, const RhPowerSgd& options, uint64_t seed);

  // Whether the state belongs to gradients of these shapes.
  bool fits(const std::vector<at::Tensor>& gradients) const;

  // Adds the compression errors of earlier passes to this rank's gradients, and fills first().
  // Keeps the gradients until restore().
  void compress(std::vector<at::Tensor> gradients);

  // Computes this rank's part of second() from the sum in first().
  void project();

  // Computes the mean over the ranks from both sums, and writes it to the gradients. Keeps the
  // difference to this rank's own gradients as its compression error.
  void restore(int num_ranks);

  at::Tensor& first() { return first_; }
  at::Tensor& second() { return second_; }

  // Resets the state to that after construction.
  void forget();

  // Must be called if the gradients of later passes are `factor` times as large as before.
  void rescale(double factor);

 private:
  // Matrices of one shape. Their factors are contiguous, so that one call makes all of them
  // orthogonal.
  struct Group {
    int64_t rows, cols, columns;
    std::vector<size_t> places; // in the bucket
    at::Tensor p, q; // [matrices, rows, columns] in first_, [matrices, cols, columns] in second_
    at::Tensor first_q; // random initial value of q
    std::vector<at::Tensor> errors; // [rows, cols] each
  };

  at::Tensor matrix(const Group& group, size_t i) const;

  std::vector<at::Tensor> gradients_;
  std::vector<std::vector<int64_t>> shapes_;
  std::vector<size_t> whole_; // places of the gradients that are sent uncompressed, at the start of first_
  int64_t num_whole_ = 0; // elements
  std::vector<Group> groups_;
  at::Tensor first_, second_;
};
