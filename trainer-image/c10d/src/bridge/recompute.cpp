// Activation checkpointing (Chen et al. 2016): a node of the graph that keeps the inputs of a
// segment and recomputes the segment in the backward pass. Parameters are inputs of the node, so
// the engine accumulates their gradients once, in the outer pass. The node's own pass accumulates
// nothing, so a Reducer's hooks never run within it.
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "guard.h"
#include "tensors.h"

// As in Rust.
struct RhSegment {
  void* context;
  // Computes the output. Returns false if the segment has failed; the reason is passed to
  // rh_segment_failed().
  bool (*run)(void* context, const at::Tensor* const* inputs, size_t count, at::Tensor** output, std::string* words);
  void (*free)(void* context);
};

namespace {
using torch::autograd::variable_list;

// The autocast state of a thread. The cache of cast weights belongs to the process.
class Autocast {
 public:
  static Autocast current() {
    Autocast state;
    for (size_t i = 0; i < kDevices.size(); i++) {
      state.enabled_[i] = at::autocast::is_autocast_enabled(kDevices[i]);
      state.dtype_[i] = at::autocast::get_autocast_dtype(kDevices[i]);
    }
    state.caches_ = at::autocast::is_autocast_cache_enabled();
    return state;
  }

  void set() const {
    for (size_t i = 0; i < kDevices.size(); i++) {
      at::autocast::set_autocast_enabled(kDevices[i], enabled_[i]);
      at::autocast::set_autocast_dtype(kDevices[i], dtype_[i]);
    }
    at::autocast::set_autocast_cache_enabled(caches_);
  }

 private:
  static constexpr std::array<at::DeviceType, 2> kDevices{at::kCPU, at::kCUDA};
  std::array<bool, 2> enabled_;
  std::array<at::ScalarType, 2> dtype_;
  bool caches_;
};

class AutocastGuard {
 public:
  explicit AutocastGuard(const Autocast& state) : before_(Autocast::current()) {
    state.set();
    at::autocast::increment_nesting();
  }
  ~AutocastGuard() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    before_.set();
  }
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  const Autocast before_;
};

class Recompute : public torch::autograd::Node {
 public:
  explicit Recompute(const RhSegment& segment) : segment_(segment), autocast_(Autocast::current()) {}

  ~Recompute() override {
    free_segment();
  }

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
      output = run(detached).detach();
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
      AutocastGuard guard(autocast_);
      auto inputs = leaves;
      // A view is not a leaf, which matches the case without recomputation. Autocast caches casts
      // of leaves, and the gradients of several uses would then be summed in the lower precision.
      inputs[0] = inputs[0].view_as(inputs[0]);
      output = run(inputs);
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
    free_segment();
  }

  std::string name() const override {
    return "RoundhouseRecompute";
  }

 private:
  at::Tensor run(const variable_list& inputs) {
    std::vector<const at::Tensor*> pointers;
    for (const auto& input : inputs) pointers.push_back(&input);
    at::Tensor* output = nullptr;
    std::string words;
    const bool is_done = segment_.run(segment_.context, pointers.data(), pointers.size(), &output, &words);
    const std::unique_ptr<at::Tensor> owned(output);
    TORCH_CHECK(is_done && owned, words);
    return *owned;
  }

  void free_segment() {
    if (void* context = std::exchange(segment_.context, nullptr)) segment_.free(context);
  }

  RhSegment segment_;
  const Autocast autocast_;
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
