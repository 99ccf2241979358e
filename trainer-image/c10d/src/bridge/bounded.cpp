// A Gloo backend whose collectives end when their group is aborted.
//
// If a peer dies in the middle of a message, Gloo does not wake the thread that waits for the rest
// of the message: Pair::signalException skips the buffer of the current operation. That thread
// sleeps until the timeout of the collective, and aborting Gloo's group has no effect. So callers
// get a work of this file instead. It ends when Gloo's work ends or when the group is aborted. In
// the second case Gloo's thread is abandoned: it keeps its work, its tensors and its connections
// until its timeout.
#include "bounded.h"

#include <ATen/core/ivalue.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "guard.h"

namespace bounded {
namespace {
using Tensors = std::vector<at::Tensor>;
using Result = c10::intrusive_ptr<c10::ivalue::Future>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

std::atomic<uint64_t> num_abandoned{0}; // works of aborted groups of this process that have not ended

[[noreturn]] void throw_aborted() {
  C10_THROW_ERROR(DistNetworkError, "Connection closed: the process group was aborted");
}

std::exception_ptr aborted() {
  try {
    throw_aborted();
  } catch (...) {
    return std::current_exception();
  }
}

// The works of a group that have not ended. Gloo's threads may outlive the group, so they share
// this object.
class Works {
 public:
  void check() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_aborted_) throw_aborted();
  }

  // Registers a work that was passed to Gloo. Returns its number, from 1.
  uint64_t begin(const Result& result) {
    std::unique_lock<std::mutex> lock(mutex_);
    const uint64_t number = next_++;
    if (!is_aborted_) {
      open_.emplace(number, result);
      return number;
    }
    leave_behind(number);
    lock.unlock();
    result->setError(aborted());
    return number;
  }

  // Removes a work that Gloo has ended. Returns whether its result must still be set; an abort has
  // set it already.
  bool end(uint64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (open_.erase(number) > 0) return true;
    if (left_.erase(number) > 0) num_abandoned--;
    return false;
  }

  void abort() {
    std::unique_lock<std::mutex> lock(mutex_);
    is_aborted_ = true;
    const auto open = std::exchange(open_, {});
    for (const auto& work : open) leave_behind(work.first);
    lock.unlock();
    // Without the lock, because setting a result calls the callbacks of its waiters.
    for (const auto& work : open) work.second->setError(aborted());
  }

  // Number of the work that has waited longest; 0 if no work waits.
  uint64_t oldest() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return open_.empty() ? 0 : open_.begin()->first;
  }

  bool has_left_any() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return !left_.empty();
  }

 private:
  void leave_behind(uint64_t number) {
    left_.insert(number);
    num_abandoned++;
  }

  std::mutex mutex_;
  std::map<uint64_t, Result> open_;
  std::set<uint64_t> left_;
  uint64_t next_ = 1;
  bool is_aborted_ = false;
};

// The work for which a caller waits.
class BoundedWork : public c10d::Work {
 public:
  BoundedWork(WorkPtr gloo, Result result) : gloo_(std::move(gloo)), result_(std::move(result)) {}

  bool isCompleted() override { return result_->completed(); }
  bool isSuccess() const override { return result_->completed() && !result_->hasError(); }
  std::exception_ptr exception() const override { return result_->hasError() ? result_->exception_ptr() : nullptr; }
  Tensors result() override { return gloo_->result(); }
  Result getFuture() override { return result_; }

  // The collective has its own timeout.
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    result_->waitAndThrow();
    return true;
  }

 private:
  const WorkPtr gloo_;
  const Result result_;
};

class Bounded : public c10d::Backend {
 public:
  explicit Bounded(c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo)
      : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)) {}

  // Abort first, because Gloo's destructor waits for its threads.
  ~Bounded() override {
    if (works_->has_left_any()) std::thread([gloo = std::move(gloo_)]() mutable { gloo.reset(); }).detach();
  }

  const std::string getBackendName() const override { return gloo_->getBackendName(); }
  c10::intrusive_ptr<Options> getBackendOptions() override { return gloo_->getBackendOptions(); }
  void setTimeout(std::chrono::milliseconds timeout) override { gloo_->setTimeout(timeout); }
  void setSequenceNumberForGroup() override { gloo_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return gloo_->getSequenceNumberForGroup(); }

  void abort() override { works_->abort(); }

  uint64_t oldest() const { return works_->oldest(); }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return with_future([&] { return gloo_->allreduce(tensors, options); });
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return with_future([&] { return gloo_->broadcast(tensors, options); });
  }

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return with_future([&] { return gloo_->allgather(outputs, inputs, options); });
  }

  WorkPtr alltoall_base(
      at::Tensor& output, at::Tensor& input, std::vector<int64_t>& come, std::vector<int64_t>& go, const c10d::AllToAllOptions& options) override {
    return with_future([&] { return gloo_->alltoall_base(output, input, come, go, options); });
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return with_future([&] { return gloo_->barrier(options); });
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    return with_thread({output}, [&] { return gloo_->_reduce_scatter_base(output, input, options); });
  }

  WorkPtr send(Tensors& tensors, int peer, int tag) override {
    return with_thread(tensors, [&] { return gloo_->send(tensors, peer, tag); });
  }

  WorkPtr recv(Tensors& tensors, int peer, int tag) override {
    return with_thread(tensors, [&] { return gloo_->recv(tensors, peer, tag); });
  }

 private:
  // Works that run on one of Gloo's own threads.
  template <class Start>
  WorkPtr with_future(Start start) {
    works_->check();
    auto work = start();
    const auto done = work->getFuture();
    auto result = c10::make_intrusive<c10::ivalue::Future>(done->elementType());
    const uint64_t number = works_->begin(result);
    done->addCallback([works = works_, number, result](c10::ivalue::Future& done) {
      if (!works->end(number)) return;
      if (done.hasError())
        result->setError(done.exception_ptr());
      else
        result->markCompleted(done.value(), done.storages());
    });
    return c10::make_intrusive<BoundedWork>(std::move(work), std::move(result));
  }

  // Works without a future, which run on the thread that waits for them.
  template <class Start>
  WorkPtr with_thread(const Tensors& outputs, Start start) {
    works_->check();
    auto work = start();
    auto result = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    const uint64_t number = works_->begin(result);
    std::thread([works = works_, number, result, outputs, work] {
      std::exception_ptr error;
      try {
        work->wait();
      } catch (...) {
        error = std::current_exception();
      }
      if (!works->end(number)) return;
      if (error)
        result->setError(error);
      else
        result->markCompleted(outputs);
    }).detach();
    return c10::make_intrusive<BoundedWork>(std::move(work), std::move(result));
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  const std::shared_ptr<Works> works_ = std::make_shared<Works>();
};
} // namespace
} // namespace bounded

c10::intrusive_ptr<c10d::Backend> rh_bounded(c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo) {
  return c10::make_intrusive<bounded::Bounded>(std::move(gloo));
}

extern "C" {

// Number of the collective that has waited longest, from 1; 0 if none waits. Gloo only.
int rh_group_oldest_wait(const RhGroup* group, uint64_t* out) {
  return rh_guard([&] {
    const auto backend = group->group->getDefaultBackend();
    const auto* own = dynamic_cast<const bounded::Bounded*>(backend.get());
    *out = own ? own->oldest() : 0;
  });
}

// Number of collectives of aborted Gloo groups that have not ended. Each may occupy a thread.
uint64_t rh_num_abandoned() {
  return bounded::num_abandoned;
}
}
