// A segment of a model whose weights are sharded. Each use is one node of the graph: it gathers the
// weights, runs the segment, and drops them. The backward pass gathers them again, and sends the
// gradient of each part to the process that has the part. So nothing is whole outside of a node,
// and an error in it leaves nothing to repair.
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "guard.h"
#include "segment.h"
#include "sharding.h"

namespace {
using torch::autograd::variable_list;

// Gives the memory of `from`, which has the same content, to a tensor whose memory was
// dropped.
void give_memory(const at::Tensor& tensor, const at::Tensor& from) {
  auto* keeper = new at::Tensor(from);
  const auto free = [](void* context) { delete static_cast<at::Tensor*>(context); };
  tensor.storage().set_data_ptr_noswap(c10::DataPtr(from.data_ptr(), keeper, free, tensor.device()));
}

class Sharded : public torch::autograd::Node {
 public:
  Sharded(std::shared_ptr<RhUnits> units, RhUnit* unit, bool recomputes, const RhSegment& segment)
      : units_(std::move(units)), unit_(unit), recomputes_(recomputes), segment_(segment), autocast_(RhAutocastState::current()) {}

  at::Tensor forward(const at::Tensor& x) {
    const std::lock_guard<std::recursive_mutex> lock(units_->mutex);
    auto& uses = units_->uses;
    const auto place = uses.size();
    if (place > 0) previous_ = uses.back();
    uses.push_back(unit_);
    const auto whole = unit_->finish_all_gather();
    // The order of the last pass is a guess. The next pass drops what is not used.
    const auto& last = units_->last_uses;
    if (place + 1 < last.size() && last[place] == unit_) last[place + 1]->begin_all_gather();
    const bool has_graph = at::GradMode::is_enabled();
    if (has_graph) set_next_edges(torch::autograd::collect_next_edges(x, unit_->shard));
    at::Tensor output;
    if (recomputes_ || !has_graph) {
      if (has_graph) x_ = torch::autograd::SavedVariable(x, /*is_output=*/false);
      at::AutoGradMode no_grad(false);
      output = segment_.run(inputs_of(x.detach(), whole)).detach();
      if (!units_->keeps_whole) drop_whole(whole, output);
    } else {
      whole_ = whole;
      input_ = x.detach().set_requires_grad(x.requires_grad());
      output_ = run_with_graph(whole);
      output = output_.detach();
      if (!units_->keeps_whole) drop_whole(whole_, output);
    }
    if (has_graph) torch::autograd::set_history(output, getptr());
    return output;
  }

  variable_list apply(variable_list&& gradients) override {
    TORCH_CHECK(!at::GradMode::is_enabled(), "a segment in shards has no second derivative");
    const std::lock_guard<std::recursive_mutex> lock(units_->mutex);
    const bool wants_x = task_should_compute_output(0);
    at::Tensor gradient, gradient_of_x;
    {
      at::AutoGradMode no_grad(false);
      gradient = at::zeros({unit_->shard.numel() * units_->num_processes()}, unit_->shard.options());
    }
    {
      const auto whole = unit_->finish_all_gather();
      if (previous_) previous_->begin_all_gather();
      if (recomputes_) {
        input_ = x_.unpack().detach().set_requires_grad(wants_x);
        const RhAutocastGuard guard(autocast_);
        output_ = run_with_graph(whole);
      } else if (!units_->keeps_whole) {
        give_memory(whole_, whole);
      }
      // AccumulateGrad adds to a gradient in place, so the sums end in the vector that is sent.
      const auto places = unit_->views(gradient);
      for (size_t i = 0; i < leaves_.size(); i++) leaves_[i].mutable_grad() = places[i];
      // Without a list of leaves: experts in the segment are a node that may lead to none of them.
      if (gradients[0].defined() && output_.requires_grad()) torch::autograd::backward({output_}, {gradients[0]});
      if (wants_x) gradient_of_x = input_.grad();
      if (gradient_of_x.defined() && (gradient_of_x.is_alias_of(whole) || (whole_.defined() && gradient_of_x.is_alias_of(whole_))))
        gradient_of_x = gradient_of_x.clone();
      const auto kept = whole_;
      forget();
      if (!units_->keeps_whole) {
        // A handle of the weights that the segment has kept then has no memory, instead of freed
        // memory.
        if (kept.defined()) rh_drop_memory(kept);
        rh_drop_memory(whole);
      }
    }
    // A process without a gradient sends zeros, because the other processes wait for it.
    unit_->begin_reduce(std::move(gradient));
    input_.reset();
    return {gradient_of_x, at::Tensor()};
  }

  void release_variables() override {
    x_.reset_data();
    input_.reset();
    forget();
    segment_.free();
  }

  std::string name() const override {
    return "RoundhouseSharded";
  }

 private:
  variable_list inputs_of(at::Tensor x, const at::Tensor& whole) const {
    variable_list inputs{std::move(x)};
    for (auto& view : unit_->views(whole)) inputs.push_back(view.detach());
    return inputs;
  }

  at::Tensor run_with_graph(const at::Tensor& whole) {
    at::AutoGradMode with_graph(true);
    // A view is not a leaf, as in rh_recompute().
    auto inputs = inputs_of(input_.view_as(input_), whole);
    leaves_.assign(inputs.begin() + 1, inputs.end());
    for (auto& leaf : leaves_) leaf.set_requires_grad(true);
    return segment_.run(inputs);
  }

  // The output may be a view of a weight.
  static void drop_whole(const at::Tensor& whole, at::Tensor& output) {
    if (output.is_alias_of(whole)) output = output.clone();
    rh_drop_memory(whole);
  }

  void forget() {
    output_.reset();
    leaves_.clear();
    whole_.reset();
  }

  const std::shared_ptr<RhUnits> units_;
  RhUnit* const unit_;
  // The unit that the backward pass needs next.
  RhUnit* previous_ = nullptr;
  const bool recomputes_;
  RhOwnedSegment segment_;
  const RhAutocastState autocast_;
  torch::autograd::SavedVariable x_;
  // The graph of the segment from `input_` and `leaves_`, which are views of `whole_`, to
  // `output_`. The memory of `whole_` is dropped until the backward pass.
  at::Tensor whole_, input_, output_;
  variable_list leaves_;
};
} // namespace

extern "C" {

// Takes ownership of the segment, also on failure.
int rh_sharded(const RhSharding* sharding, size_t index, bool recomputes, const at::Tensor* x, const RhSegment* segment, at::Tensor** out) {
  return rh_guard([&] {
    const auto& units = sharding->units;
    auto* node = new Sharded(units, units->all.at(index).get(), recomputes, *segment);
    *out = new at::Tensor(std::shared_ptr<Sharded>(node, torch::autograd::deleteNode)->forward(*x));
  });
}
}
