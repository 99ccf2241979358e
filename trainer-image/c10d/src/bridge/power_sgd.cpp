// PowerSGD as a hook of c10d's Reducer: the order of its sums, and their stream.
#include "power_sgd.h"

#include <ATen/ops/stack.h>
#include <c10/core/Event.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>

#include "digest.h"
#include "group.h"

namespace {
using c10::impl::VirtualGuardImpl;
using Future = c10::ivalue::Future;

std::optional<c10::Stream> side_stream(const c10::Device& device) {
  if (device.is_cpu()) return std::nullopt;
  return VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

// While this guard lives, this thread enqueues work to `stream`, after the work in the current
// stream. Without a stream it has no effect.
class OnStream {
 public:
  explicit OnStream(const std::optional<c10::Stream>& stream) {
    if (!stream) return;
    const VirtualGuardImpl guard(stream->device_type());
    c10::Event before(stream->device_type());
    before.record(guard.getStream(stream->device()));
    before.block(*stream);
    before_ = guard.exchangeStream(*stream);
  }

  ~OnStream() {
    if (before_) VirtualGuardImpl(before_->device_type()).exchangeStream(*before_);
  }

  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  std::optional<c10::Stream> before_;
};

// Throws if a peer is lost. NCCL: only the stream waits.
void wait(const c10::intrusive_ptr<c10d::Work>& work) {
  const auto begun = std::chrono::steady_clock::now();
  if (work) work->wait();
  rh_count_wait(std::chrono::steady_clock::now() - begun);
}
} // namespace

PowerSgdHook::PowerSgdHook(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group, const RhPowerSgd& options, c10::Device device, const std::vector<at::Tensor>& whole)
    : CppCommHookInterface(group), options_(options), device_(device), stream_(side_stream(device)) {
  TORCH_CHECK(options.rank >= 1, "the rank of PowerSGD must be at least 1");
  for (const auto& parameter : whole) whole_.insert(parameter.unsafeGetTensorImpl());
  // With a rate below 1, vectors could be compressed.
  TORCH_CHECK(options.min_compression_rate >= 1, "the least rate of compression must be at least 1");
}

c10::intrusive_ptr<Future> PowerSgdHook::runHook(c10d::GradBucket& bucket) {
  c10::AutoGradMode no_grad(false);
  if (bucket.getIndex() == 0) {
    rounds_.clear();
    digests_.clear();
    payload_bytes_ = 0;
  }
  auto gradients = bucket.getGradients();
  const OnStream on_stream(stream_);
  // Create the state in the first pass, compressed or not, so that later passes copy nothing to the
  // device.
  auto& own = kept(bucket, gradients);
  Round round{&own, bucket.getBufferRef(), {}, {}, {}};
  if (num_passes_ < options_.plain_passes) {
    num_passes_ += bucket.isLast();
    return sum(round.buffer.div_(state_->getSize()))->getFuture();
  }
  round.done = c10::make_intrusive<Future>(c10::TensorType::get(), stream_ ? std::vector<c10::Device>{device_} : std::vector<c10::Device>{});
  own.compress(std::move(gradients));
  round.first = sum(own.first());
  rounds_.push_back(round);
  if (rounds_.size() > 1) begin_second(rounds_[rounds_.size() - 2]);
  if (bucket.isLast()) {
    num_passes_++;
    begin_second(rounds_.back());
    for (auto& other : rounds_) finish(other);
    rounds_.clear();
  }
  return round.done;
}

LowRankBucket& PowerSgdHook::kept(c10d::GradBucket& bucket, const std::vector<at::Tensor>& gradients) {
  const size_t index = bucket.getIndex();
  if (buckets_.size() <= index) buckets_.resize(index + 1);
  auto& found = buckets_[index];
  if (!found || !found->fits(gradients)) {
    std::vector<bool> is_whole;
    for (const auto& parameter : bucket.getParameters()) is_whole.push_back(whole_.count(parameter.unsafeGetTensorImpl()) > 0);
    found = std::make_unique<LowRankBucket>(gradients, is_whole, options_, options_.seed + index);
    // If the group is aborted, the buffer may be freed while the stream still uses it.
    if (stream_) bucket.getBufferRef().record_stream(*stream_);
  }
  return *found;
}

c10::intrusive_ptr<c10d::Work> PowerSgdHook::sum(at::Tensor& tensor) {
  payload_bytes_ += static_cast<int64_t>(tensor.nbytes());
  std::vector<at::Tensor> tensors{tensor};
  return state_->allreduce(tensors);
}

void PowerSgdHook::begin_second(Round& round) {
  wait(round.first);
  digests_.push_back(rh_digest({round.bucket->first()}));
  round.bucket->project();
  if (round.bucket->second().numel() > 0) round.second = sum(round.bucket->second());
}

void PowerSgdHook::finish(Round& round) {
  wait(round.second);
  digests_.push_back(rh_digest({round.bucket->second()}));
  round.bucket->restore(state_->getSize());
  round.done->markCompleted(round.buffer);
}

at::Tensor PowerSgdHook::digest() const {
  return digests_.empty() ? at::Tensor() : at::stack(digests_).sum();
}

void PowerSgdHook::forget() {
  c10::AutoGradMode no_grad(false);
  const OnStream on_stream(stream_);
  for (auto& bucket : buckets_)
    if (bucket) bucket->forget();
}

void PowerSgdHook::rescale(double factor) {
  if (factor == 1) return;
  c10::AutoGradMode no_grad(false);
  const OnStream on_stream(stream_);
  for (auto& bucket : buckets_)
    if (bucket) bucket->rescale(factor);
}
