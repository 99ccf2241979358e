// Sums over the ranks of a group as autograd operations: of statistics over a batch that the ranks
// share, and around layers of which the ranks have parts.
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <atomic>
#include <chrono>

#include "group.h"

namespace {
using torch::autograd::variable_list;

std::atomic<int64_t> waited_ns{0};

// Sums in place. NCCL: only the current stream waits.
void sum(const c10::intrusive_ptr<c10d::ProcessGroup>& group, at::Tensor& tensor) {
  c10::AutoGradMode no_grad(false);
  std::vector<at::Tensor> tensors{tensor};
  const auto begun = std::chrono::steady_clock::now();
  const auto work = group->allreduce(tensors);
  if (work) work->wait();
  rh_count_wait(std::chrono::steady_clock::now() - begun);
}

// Each rank's loss depends on the sum, so the gradient of a rank's part is the sum of the ranks'
// gradients. A rank without a gradient must also issue the collective, because the other ranks wait
// for it.
class SumBackward : public torch::autograd::Node {
 public:
  explicit SumBackward(c10::intrusive_ptr<c10d::ProcessGroup> group) : group_(std::move(group)) {}

  variable_list apply(variable_list&& gradients) override {
    const auto& own = gradients[0];
    auto gradient = own.defined() ? own.clone(at::MemoryFormat::Contiguous) : input_metadata(0).zeros_like();
    sum(group_, gradient);
    return {gradient};
  }

  std::string name() const override {
    return "SumOverRanksBackward";
  }

 private:
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

class SumOfPartsBackward : public torch::autograd::Node {
 public:
  variable_list apply(variable_list&& gradients) override {
    return std::move(gradients);
  }

  std::string name() const override {
    return "SumOfPartsBackward";
  }
};

// Makes `node` the origin of `output`, which was computed from `input`.
void connect(at::Tensor& output, const at::Tensor& input, const std::shared_ptr<torch::autograd::Node>& node) {
  if (!torch::autograd::compute_requires_grad(input)) return;
  node->set_next_edges(torch::autograd::collect_next_edges(input));
  torch::autograd::set_history(output, node);
}
} // namespace

void rh_count_wait(std::chrono::nanoseconds waited) {
  waited_ns += waited.count();
}

extern "C" {

int rh_group_sum(const RhGroup* group, const at::Tensor* own, at::Tensor** out) {
  return rh_guard([&] {
    auto total = own->detach().clone(at::MemoryFormat::Contiguous);
    sum(group->group, total);
    connect(total, *own, std::make_shared<SumBackward>(group->group));
    *out = new at::Tensor(std::move(total));
  });
}

// The same values. The gradient is the sum of the ranks' gradients.
int rh_group_sum_gradients(const RhGroup* group, const at::Tensor* x, at::Tensor** out) {
  return rh_guard([&] {
    auto same = x->detach();
    connect(same, *x, std::make_shared<SumBackward>(group->group));
    *out = new at::Tensor(std::move(same));
  });
}

// The sum of the ranks' values. The gradient of each is that of the sum, which is equal on all
// ranks.
int rh_group_sum_values(const RhGroup* group, const at::Tensor* own, at::Tensor** out) {
  return rh_guard([&] {
    auto total = own->detach().clone(at::MemoryFormat::Contiguous);
    sum(group->group, total);
    connect(total, *own, std::make_shared<SumOfPartsBackward>());
    *out = new at::Tensor(std::move(total));
  });
}

// Nanoseconds that this process has waited since the last call, in these sums (forward and
// backward) and in the sums of PowerSGD.
int64_t rh_take_sum_wait() {
  return waited_ns.exchange(0);
}
}
