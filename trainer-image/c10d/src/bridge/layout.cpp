// The layout of gradient buckets, found without peers.
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "guard.h"
#include "tensors.h"

extern "C" {

// Runs the backward pass of `loss` to find the order of the gradients. Calls `consume` once for
// each bucket that a Reducer would build from this order, with the indices of its parameters.
// Parameters without a gradient come last.
int rh_layout(RhTensors parameters, size_t count, const at::Tensor* loss, int64_t first_bucket_bytes, int64_t bucket_bytes, void* context,
    void (*consume)(void*, const size_t*, size_t)) {
  return rh_guard([&] {
    const auto list = rh_list(parameters, count);
    std::vector<int64_t> order;
    std::vector<bool> seen(count, false);
    std::vector<std::pair<std::shared_ptr<torch::autograd::Node>, uintptr_t>> hooks;
    const auto note = [&order, &seen](size_t index) {
      if (!seen[index]) order.push_back(static_cast<int64_t>(index));
      seen[index] = true;
    };
    for (size_t index = 0; index < count; index++) {
      auto accumulator = torch::autograd::impl::grad_accumulator(list[index]);
      TORCH_CHECK(accumulator, "parameter ", index, " requires no gradient");
      const auto key = accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
          [note, index](const auto& outputs, const auto&) {
            note(index);
            return outputs;
          }));
      hooks.emplace_back(std::move(accumulator), key);
    }
    const auto unhook = [&hooks] {
      for (auto& [accumulator, key] : hooks) accumulator->del_post_hook(key);
    };
    try {
      loss->backward();
    } catch (...) {
      unhook();
      throw;
    }
    unhook();
    for (size_t index = 0; index < count; index++) note(index);
    std::vector<at::Tensor> ordered;
    for (const int64_t index : order) ordered.push_back(list[index]);
    const auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(
        ordered, {static_cast<size_t>(first_bucket_bytes), static_cast<size_t>(bucket_bytes)}, std::vector<bool>(count, false), order));
    for (const auto& bucket : buckets) consume(context, bucket.data(), bucket.size());
  });
}
}
