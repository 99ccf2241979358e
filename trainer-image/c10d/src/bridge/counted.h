// A backend that does not abort during the launch of a collective.
//
// With a non-blocking communicator, NCCL launches each collective in another thread, and the caller
// polls until the launch is done. If the communicator is aborted meanwhile, PyTorch 2.11 polls a
// freed communicator until TORCH_NCCL_NONBLOCKING_TIMEOUT, and NCCL prints a warning for each poll.
// So this backend counts launches: an abort prevents new launches and waits for current ones, but
// at most kPatience, because a launch may itself hang.
#pragma once
#include <c10/util/Exception.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

class RhLaunches {
 public:
  void enter() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_closed_) C10_THROW_ERROR(DistBackendError, "Connection closed: the process group was aborted");
    num_++;
  }

  void leave() {
    const std::lock_guard<std::mutex> lock(mutex_);
    num_--;
    changed_.notify_all();
  }

  void close() {
    std::unique_lock<std::mutex> lock(mutex_);
    is_closed_ = true;
    changed_.wait_for(lock, kPatience, [&] { return num_ == 0; });
  }

 private:
  static constexpr auto kPatience = std::chrono::milliseconds(100);

  std::mutex mutex_;
  std::condition_variable changed_;
  int num_ = 0;
  bool is_closed_ = false;
};

template <class Base>
class RhCounted : public Base {
 public:
  using Base::Base;
  using Tensors = std::vector<at::Tensor>;
  using Work = c10::intrusive_ptr<c10d::Work>;

  void abort() override {
    launches_.close();
    Base::abort();
  }

  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return launch([&] { return Base::allreduce(tensors, options); });
  }

  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return launch([&] { return Base::broadcast(tensors, options); });
  }

  Work allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return launch([&] { return Base::allgather(outputs, inputs, options); });
  }

  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    return launch([&] { return Base::_reduce_scatter_base(output, input, options); });
  }

  Work send(Tensors& tensors, int peer, int tag) override {
    return launch([&] { return Base::send(tensors, peer, tag); });
  }

  Work recv(Tensors& tensors, int peer, int tag) override {
    return launch([&] { return Base::recv(tensors, peer, tag); });
  }

  Work barrier(const c10d::BarrierOptions& options) override {
    return launch([&] { return Base::barrier(options); });
  }

  // All operations up to endCoalescing() are one launch.
  void startCoalescing() override {
    launches_.enter();
    try {
      Base::startCoalescing();
    } catch (...) {
      launches_.leave();
      throw;
    }
  }

  Work endCoalescing() override {
    const Leaver leaver{launches_};
    return Base::endCoalescing();
  }

 private:
  struct Leaver {
    RhLaunches& launches;
    ~Leaver() { launches.leave(); }
  };

  template <class Launch>
  Work launch(Launch call) {
    launches_.enter();
    const Leaver leaver{launches_};
    return call();
  }

  RhLaunches launches_;
};
