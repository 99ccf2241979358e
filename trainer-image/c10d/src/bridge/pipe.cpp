// A pipeline of processes (Huang et al. 2019), each of which computes some layers: activations
// travel to the next process in the forward pass, and their gradients to the one before it in the
// backward pass. Both are nodes of the graph.
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "group.h"

namespace {
using torch::autograd::variable_list;

class Pipe {
 public:
  // Two groups of the same processes: a library may complete the operations of a group in their
  // order, and two processes send to each other in different orders.
  Pipe(c10::intrusive_ptr<c10d::ProcessGroup> down, c10::intrusive_ptr<c10d::ProcessGroup> up) : down_(std::move(down)), up_(std::move(up)) {}

  at::Tensor receive_activation(at::IntArrayRef shape, at::Device device) {
    return receive(*down_, down_->getRank() - 1, shape, device, received_);
  }
  void send_activation(const at::Tensor& x) {
    send(*down_, down_->getRank() + 1, x, sent_);
  }
  at::Tensor receive_gradient(at::IntArrayRef shape, at::Device device) {
    return receive(*up_, up_->getRank() + 1, shape, device, received_back_);
  }
  void send_gradient(const at::Tensor& gradient) {
    send(*up_, up_->getRank() - 1, gradient, sent_back_);
  }

  // Waits until all tensors are sent.
  void flush() {
    const std::lock_guard<std::mutex> lock(mutex_);
    collective([&] {
      for (const auto& it : sending_) it.work->wait();
    });
    sending_.clear();
  }

  std::string failure() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return failure_;
  }

 private:
  struct Sending {
    c10::intrusive_ptr<c10d::Work> work;
    at::Tensor tensor;
  };

  at::Tensor receive(c10d::ProcessGroup& group, int64_t from, at::IntArrayRef shape, at::Device device, int& number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    c10::AutoGradMode no_grad(false);
    const auto tensor = at::empty(shape, at::TensorOptions(at::kFloat).device(device));
    const auto begun = std::chrono::steady_clock::now();
    collective([&] {
      std::vector<at::Tensor> tensors{tensor};
      const auto work = group.recv(tensors, static_cast<int>(from), number++);
      if (work) work->wait();
    });
    rh_count_wait(std::chrono::steady_clock::now() - begun);
    return tensor;
  }

  // Does not wait: the other process may send to this one first. What it sends later shows that it
  // has received, so few tensors are kept.
  void send(c10d::ProcessGroup& group, int64_t to, const at::Tensor& tensor, int& number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    c10::AutoGradMode no_grad(false);
    std::vector<at::Tensor> tensors{tensor.detach().to(at::kFloat).contiguous()};
    collective([&] {
      for (; !sending_.empty() && sending_.front().work->isCompleted(); sending_.pop_front()) sending_.front().work->wait();
      auto work = group.send(tensors, static_cast<int>(to), number++);
      if (work) sending_.push_back({std::move(work), tensors[0]});
    });
  }

  template <class Part>
  void collective(Part part) {
    try {
      part();
    } catch (const std::exception& error) {
      if (failure_.empty()) failure_ = error.what();
      throw;
    }
  }

  const c10::intrusive_ptr<c10d::ProcessGroup> down_, up_;
  std::mutex mutex_;
  std::deque<Sending> sending_;
  // The numbers of messages are their tags, and both ends count alike. Other operations have tag 0.
  int sent_ = 1, received_ = 1, sent_back_ = 1, received_back_ = 1;
  std::string failure_;
};

// The origin of a received activation.
class Receive : public torch::autograd::Node {
 public:
  explicit Receive(std::shared_ptr<Pipe> pipe) : pipe_(std::move(pipe)) {}

  variable_list apply(variable_list&& gradients) override {
    // The process before waits for a gradient, also for one that is zero.
    pipe_->send_gradient(gradients[0].defined() ? gradients[0] : input_metadata(0).zeros_like());
    return {};
  }

  std::string name() const override {
    return "RoundhouseReceive";
  }

 private:
  const std::shared_ptr<Pipe> pipe_;
};

// The end of a stage, whose gradient comes from the next process.
class Send : public torch::autograd::Node {
 public:
  Send(std::shared_ptr<Pipe> pipe, const at::Tensor& x) : pipe_(std::move(pipe)), options_(x.options().requires_grad(false)), sizes_(x.sizes().vec()) {}

  variable_list apply(variable_list&&) override {
    const auto gradient = pipe_->receive_gradient(sizes_, options_.device());
    return {gradient.to(options_.dtype())};
  }

  std::string name() const override {
    return "RoundhouseSend";
  }

 private:
  const std::shared_ptr<Pipe> pipe_;
  const at::TensorOptions options_;
  const std::vector<int64_t> sizes_;
};
} // namespace

struct RhPipe {
  std::shared_ptr<Pipe> pipe;
};

extern "C" {

int rh_pipe_new(const RhGroup* down, const RhGroup* up, RhPipe** out) {
  return rh_guard([&] { *out = new RhPipe{std::make_shared<Pipe>(down->group, up->group)}; });
}

void rh_pipe_free(RhPipe* pipe) {
  delete pipe;
}

// Receives an activation of this shape from the process before this one, on the device of `beside`.
int rh_pipe_receive(const RhPipe* pipe, const int64_t* shape, size_t dims, const at::Tensor* beside, at::Tensor** out) {
  return rh_guard([&] {
    auto x = pipe->pipe->receive_activation({shape, dims}, beside->device());
    if (at::GradMode::is_enabled()) torch::autograd::set_history(x, std::make_shared<Receive>(pipe->pipe));
    *out = new at::Tensor(std::move(x));
  });
}

// Sends an activation to the next process. Returns a zero, from which the backward pass begins.
int rh_pipe_send(const RhPipe* pipe, const at::Tensor* x, at::Tensor** out) {
  return rh_guard([&] {
    pipe->pipe->send_activation(*x);
    auto zero = at::zeros({}, x->options().dtype(at::kFloat).requires_grad(false));
    if (torch::autograd::compute_requires_grad(*x)) {
      auto node = std::make_shared<Send>(pipe->pipe, *x);
      node->set_next_edges(torch::autograd::collect_next_edges(*x));
      torch::autograd::set_history(zero, node);
    }
    *out = new at::Tensor(std::move(zero));
  });
}

int rh_pipe_flush(const RhPipe* pipe) {
  return rh_guard([&] { pipe->pipe->flush(); });
}

// Calls `consume` with the first error, or not at all.
void rh_pipe_failure(const RhPipe* pipe, void* context, void (*consume)(void*, const uint8_t*, size_t)) {
  std::string words;
  rh_guard([&] { words = pipe->pipe->failure(); });
  if (!words.empty()) consume(context, reinterpret_cast<const uint8_t*>(words.data()), words.size());
}
}
