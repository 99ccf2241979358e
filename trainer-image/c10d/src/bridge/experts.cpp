// Experts that are spread over the processes of a group (Lepikhin et al. 2020; Fedus et al. 2021).
// A use of them is one node of the graph: it sends each row to the process that has its expert,
// runs the experts, and sends their outputs back. The backward pass does the same with gradients.
// Weights of experts stay where they are, and the gradient of a weight is complete in its process.
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "exchange.h"
#include "guard.h"
#include "segment.h"
#include "sharding.h"

namespace {
using torch::autograd::variable_list;
using Rows = std::vector<int64_t>;

// Sends rows to all processes, and returns those that arrive, in the order of the processes.
at::Tensor exchange(RhUnits& units, const at::Tensor& rows, const Rows& come, const Rows& go) {
  c10::AutoGradMode no_grad(false);
  const auto sent = rows.contiguous();
  auto sizes = sent.sizes().vec();
  sizes[0] = std::accumulate(come.begin(), come.end(), int64_t{0});
  auto received = at::empty(sizes, sent.options());
  // Libraries differ in the types that they exchange, but all of them know bytes.
  const auto bytes = [](const at::Tensor& tensor) { return tensor.view({tensor.size(0), -1}).view(at::kByte); };
  auto to = bytes(received), from = bytes(sent);
  c10::intrusive_ptr<c10d::Work> work;
  units.collective([&] { work = rh_begin_exchange_of_rows(*units.group, to, from, come, go); });
  units.wait(work);
  return received;
}

class Experts : public torch::autograd::Node {
 public:
  // `count`: the number of experts in each process.
  Experts(std::shared_ptr<RhUnits> units, int64_t count, const RhSegment& segment)
      : units_(std::move(units)), count_(count), segment_(segment) {}

  // The first dimension of `x` has equal numbers of rows for each expert, in the order of the
  // experts.
  at::Tensor forward(size_t unit, const at::Tensor& x) {
    const std::lock_guard<std::recursive_mutex> lock(units_->mutex);
    TORCH_CHECK(unit < units_->all.size(), "there is no unit ", unit);
    unit_ = units_->all[unit].get();
    const auto size = units_->num_processes();
    TORCH_CHECK(
        x.dim() > 0 && x.size(0) > 0 && x.numel() > 0 && x.size(0) % (count_ * size) == 0, "an input of ", x.sizes(), " for ", count_ * size,
        " experts: the first dimension must have equal numbers of rows for all of them");
    go_.assign(size, x.size(0) / size);
    come_ = units_->rows_of_all(x.size(0), x.device());
    for (auto& rows : come_) rows /= size;
    const bool has_graph = at::GradMode::is_enabled();
    if (has_graph) set_next_edges(torch::autograd::collect_next_edges(x, unit_->shard));
    for (const auto& input : batches(exchange(*units_, x.detach(), come_, go_))) {
      inputs_.push_back(has_graph ? input.detach().set_requires_grad(at::isFloatingType(input.scalar_type())) : input);
      auto weights = unit_->views(unit_->shard.detach());
      if (has_graph)
        for (auto& weight : weights) weight.set_requires_grad(true);
      // A view is not a leaf, as in rh_recompute().
      variable_list arguments{inputs_.back().view_as(inputs_.back())};
      arguments.insert(arguments.end(), weights.begin(), weights.end());
      outputs_.push_back(segment_.run(arguments));
      TORCH_CHECK(
          outputs_.back().dim() > 0 && outputs_.back().size(0) == input.size(0), "experts return ", outputs_.back().sizes(),
          " for an input of ", input.sizes(), ": the first dimension must stay");
      leaves_.push_back(std::move(weights));
    }
    auto output = exchange(*units_, in_order(outputs_), go_, come_);
    if (has_graph) torch::autograd::set_history(output, getptr());
    else forget();
    return output;
  }

  variable_list apply(variable_list&& gradients) override {
    TORCH_CHECK(!at::GradMode::is_enabled(), "experts of several processes have no second derivative");
    const std::lock_guard<std::recursive_mutex> lock(units_->mutex);
    // A process without a gradient sends zeros, because the other processes wait for it.
    const auto own = gradients[0].defined() ? gradients[0] : input_metadata(0).zeros_like();
    const auto of_outputs = batches(exchange(*units_, own, come_, go_));
    at::Tensor of_weights;
    {
      at::AutoGradMode no_grad(false);
      of_weights = at::zeros({static_cast<int64_t>(inputs_.size()), unit_->shard.numel()}, unit_->shard.options());
    }
    variable_list roots, of_roots;
    const bool wants_x = task_should_compute_output(0);
    for (size_t batch = 0; batch < inputs_.size(); batch++) {
      // AccumulateGrad adds to a gradient in place.
      const auto places = unit_->views(of_weights[static_cast<int64_t>(batch)]);
      for (size_t i = 0; i < places.size(); i++) leaves_[batch][i].mutable_grad() = places[i];
      if (!outputs_[batch].requires_grad()) continue;
      roots.push_back(outputs_[batch]);
      of_roots.push_back(of_outputs[batch]);
    }
    if (!roots.empty()) torch::autograd::backward(roots, of_roots);
    at::Tensor gradient_of_x;
    if (wants_x) {
      variable_list of_inputs;
      for (const auto& input : inputs_) of_inputs.push_back(input.grad().defined() ? input.grad() : at::zeros_like(input));
      gradient_of_x = exchange(*units_, in_order(of_inputs), go_, come_);
    }
    at::AutoGradMode no_grad(false);
    unit_->add_gradients(std::move(of_weights));
    forget();
    return {gradient_of_x, at::Tensor()};
  }

  void release_variables() override {
    forget();
    segment_.free();
  }

  std::string name() const override {
    return "RoundhouseExperts";
  }

 private:
  // What the experts run on, of rows in the order of process, expert, row: one batch for all
  // processes in the order of expert, process, row. Or a batch for each process, if gradients stay
  // apart.
  variable_list batches(const at::Tensor& rows) const {
    at::AutoGradMode no_grad(false);
    auto of_processes = rows.split_with_sizes(come_);
    if (!units_->sums) return of_processes;
    for (auto& part : of_processes) part = part.unflatten(0, {count_, -1});
    return {at::cat(of_processes, 1).flatten(0, 1)};
  }

  // The inverse of batches().
  at::Tensor in_order(const variable_list& batches) const {
    at::AutoGradMode no_grad(false);
    if (!units_->sums) return at::cat(batches);
    auto rows = come_;
    for (auto& number : rows) number /= count_;
    variable_list of_processes;
    for (const auto& part : batches[0].detach().unflatten(0, {count_, -1}).split_with_sizes(rows, 1)) of_processes.push_back(part.flatten(0, 1));
    return at::cat(of_processes);
  }

  void forget() {
    inputs_.clear();
    outputs_.clear();
    leaves_.clear();
  }

  const std::shared_ptr<RhUnits> units_;
  RhUnit* unit_ = nullptr;
  const int64_t count_;
  RhOwnedSegment segment_;
  // Numbers of rows that come from each process and go to it.
  Rows come_, go_;
  // The graphs of the batches, from inputs and weights to outputs.
  variable_list inputs_, outputs_;
  std::vector<variable_list> leaves_;
};
} // namespace

extern "C" {

// Runs the experts of a unit, of which each process has `count`. Takes ownership of the segment,
// also on failure.
int rh_experts(const RhSharding* sharding, size_t index, int64_t count, const at::Tensor* x, const RhSegment* segment, at::Tensor** out) {
  return rh_guard([&] {
    auto* node = new Experts(sharding->units, count, *segment);
    *out = new at::Tensor(std::shared_ptr<Experts>(node, torch::autograd::deleteNode)->forward(index, *x));
  });
}
}
