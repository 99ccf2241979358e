// Activation checkpointing (Chen et al. 2016): a node of the graph that keeps the inputs of a
// segment and recomputes the segment in the backward pass. Parameters are inputs of the node, so
// the engine accumulates their gradients once, in the outer pass. The node's own pass accumulates
// nothing, so a Reducer's hooks never run within it.
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "guard.h"
#include "segment.h"
#include "tensors.h"

namespace {
using torch::autograd::variable_list;

class Recompute : public torch::autograd::Node {
 public:
  explicit Recompute(const RhSegment& segment) : segment_(segment), autocast_(RhAutocastState::current()) {}

  // Saves the inputs, of which the first is the activation, and computes the output without a
  // graph.
  at::Tensor forward(const variable_list& inputs) {
    const bool has_graph = at::GradMode::is_enabled() && torch::autograd::any_variable_requires_grad(inputs);
    if (has_graph) {
      set_next_edges(torch::autograd::collect_next_edges(inputs));
      // Save before the segment runs: then it is an error if the segment changes an input.
      for (const auto& input : inputs) saved_.emplace_back(input, /*is_output=*/false);
    }
    at::Tensor output;
    {
      // Autocast does not cache the cast of a weight that requires no gradient. A cached cast from
      // here would have no graph, and later uses of the weight would find it.
      at::AutoGradMode no_grad(false);
      variable_list detached;
      for (const auto& input : inputs) detached.push_back(input.detach());
      output = segment_.run(detached).detach();
    }
    if (has_graph) torch::autograd::set_history(output, getptr());
    return output;
  }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(!at::GradMode::is_enabled(), "a segment whose activations are recomputed has no second derivative");
    variable_list leaves, wanted;
    std::vector<size_t> places;
    for (size_t i = 0; i < saved_.size(); i++) {
      leaves.push_back(saved_[i].unpack().detach());
      if (!task_should_compute_output(i)) continue;
      leaves[i].set_requires_grad(true);
      wanted.push_back(leaves[i]);
      places.push_back(i);
    }
    variable_list results(leaves.size());
    if (wanted.empty() || !gradients[0].defined()) return results;
    at::AutoGradMode with_graph(true);
    at::Tensor output;
    {
      RhAutocastGuard guard(autocast_);
      auto inputs = leaves;
      // A view is not a leaf, which matches the case without recomputation. Autocast caches casts
      // of leaves, and the gradients of several uses would then be summed in the lower precision.
      inputs[0] = inputs[0].view_as(inputs[0]);
      output = segment_.run(inputs);
    }
    TORCH_CHECK(
        output.sizes() == gradients[0].sizes() && output.scalar_type() == gradients[0].scalar_type(),
        "a segment gives ", output.sizes(), " of ", output.scalar_type(), " when it is computed again, and its gradient is ",
        gradients[0].sizes(), " of ", gradients[0].scalar_type());
    if (!output.requires_grad()) return results;
    auto found = torch::autograd::grad({output}, wanted, {gradients[0]}, /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
    for (size_t i = 0; i < places.size(); i++) results[places[i]] = std::move(found[i]);
    return results;
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto& saved : saved_) saved.reset_data();
    segment_.free();
  }

  std::string name() const override {
    return "RoundhouseRecompute";
  }

 private:
  RhOwnedSegment segment_;
  const RhAutocastState autocast_;
  std::vector<torch::autograd::SavedVariable> saved_;
};
} // namespace

extern "C" {

// Takes ownership of the segment, also on failure. `inputs`: the activation, then the parameters.
int rh_recompute(RhTensors inputs, size_t count, const RhSegment* segment, at::Tensor** out) {
  return rh_guard([&] {
    const std::shared_ptr<Recompute> node(new Recompute(*segment), torch::autograd::deleteNode);
    *out = new at::Tensor(node->forward(rh_list(inputs, count)));
  });
}

void rh_segment_failed(std::string* words, const char* text, size_t length) {
  try {
    words->assign(text, length);
  } catch (...) {
    // Out of memory for the message: the segment fails without one.
  }
}
}
