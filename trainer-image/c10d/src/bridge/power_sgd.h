// PowerSGD as a hook of c10d's Reducer.
#pragma once
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <memory>
#include <unordered_set>

#include "low_rank.h"

// Each bucket travels in two sums, of which the second one follows from the first. The thread of the backward pass
// issues all of them, and it issues a bucket's second one right after the next bucket's first one, so that the order is
// the same on all ranks however long each sum takes. (PyTorch's hook issues them when the sums before are done: over Gloo
// the order is then that of its threads.) Waits for the first sums count as waits: see rh_count_wait.
class PowerSgdHook : public c10d::CppCommHookInterface<c10::intrusive_ptr<c10d::ProcessGroup>> {
 public:
  // The gradients of the parameters in `whole` are never compressed.
  PowerSgdHook(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const RhPowerSgd& options, c10::Device device,
      const std::vector<at::Tensor>& whole);

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;

  // What earlier passes have left over, and what they have learned, is gone.
  void forget();

  // See LowRankBucket::rescale.
  void rescale(double factor);

  // Bytes that this rank has given to sums in the last pass that began.
  int64_t payload_bytes() const { return payload_bytes_; }

  // The digest of the last pass's sums as they came; undefined if it compressed nothing.
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
  // On a GPU all of it happens in a stream beside the backward pass.
  const std::optional<c10::Stream> stream_;
  uint64_t num_passes_ = 0;
  int64_t payload_bytes_ = 0;
  std::vector<at::Tensor> digests_; // of the sums of this pass
  std::vector<std::unique_ptr<LowRankBucket>> buckets_;
  std::vector<Round> rounds_; // of this pass
};
