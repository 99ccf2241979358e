// PowerSGD as a hook of c10d's Reducer.
#pragma once
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <memory>
#include <unordered_set>

#include "low_rank.h"

// Each bucket is sent in two sums; the input of the second depends on the first. The thread of the
// backward pass issues all sums. It issues the second sum of a bucket right after the first sum of
// the next bucket, so the order is the same on all ranks and does not depend on the duration of a
// sum. (PyTorch's hook issues the second sum when the first is done, so over Gloo the order depends
// on threads.) Waits for the first sums count as waits for peers: see rh_count_wait.
class PowerSgdHook : public c10d::CppCommHookInterface<c10::intrusive_ptr<c10d::ProcessGroup>> {
 public:
  // Gradients of the parameters in `whole` are never compressed.
  PowerSgdHook(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const RhPowerSgd& options, c10::Device device,
      const std::vector<at::Tensor>& whole);

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;

  // Discards the compression errors and the factors of earlier passes.
  void forget();

  // Calls LowRankBucket::rescale for each bucket.
  void rescale(double factor);

  // Bytes that this rank has passed to sums in the last pass.
  int64_t payload_bytes() const { return payload_bytes_; }

  // The digest of the last pass's sums; undefined if the pass compressed nothing.
  at::Tensor digest() const;

 private:
  struct Round {
    LowRankBucket* bucket;
    at::Tensor buffer;
    c10::intrusive_ptr<c10d::Work> first, second;
    c10::intrusive_ptr<c10::ivalue::Future> done;
  };

  LowRankBucket& kept(c10d::GradBucket& bucket, const std::vector<at::Tensor>& gradients);
  c10::intrusive_ptr<c10d::Work> sum(at::Tensor& tensor);
  void begin_second(Round& round);
  void finish(Round& round);

  const RhPowerSgd options_;
  const c10::Device device_;
  std::unordered_set<const c10::TensorImpl*> whole_;
  // On a GPU all work runs in a stream beside the backward pass.
  const std::optional<c10::Stream> stream_;
  uint64_t num_passes_ = 0;
  int64_t payload_bytes_ = 0;
  std::vector<at::Tensor> digests_; // of the sums of this pass
  std::vector<std::unique_ptr<LowRankBucket>> buckets_;
  std::vector<Round> rounds_; // of this pass
};
