// c10d's Reducer: buckets of gradients, reduced while the backward pass still runs.
#include "bridge.h"

#include <algorithm>

// Tells what the Reducer measures for its logger: with CUDA by events on the stream, else by the clock.
class TimedReducer : public c10d::Reducer {
 public:
  using c10d::Reducer::Reducer;

  // Nanoseconds between the last gradient of this rank and the end of the reduction; -1 if they are unknown.
  int64_t waited() {
    using Event = c10d::Timer::Event;
    if (!timer_ || !timer_->getTimestamp(Event::kBackwardCommEnd)) return -1;
    return timer_->measureDifference(Event::kBackwardComputeEnd, Event::kBackwardCommEnd).value_or(-1);
  }
};

extern "C" {

int rh_reducer_new(torch::Tensor* const* parameters, size_t count, const RhGroup* group, int64_t bucket_bytes, int64_t first_bucket_bytes, bool view, RhReducer** out) {
  return rh_guard([&] {
    auto made = std::make_unique<RhReducer>();
    made->group = group->group;
    for (size_t i = 0; i < count; i++) made->parameters.push_back(*parameters[i]);
    c10d::verify_params_across_processes(made->group, made->parameters, std::nullopt);
    const std::vector<bool> sparse(count, false);
    auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(
        made->parameters, {static_cast<size_t>(first_bucket_bytes), static_cast<size_t>(bucket_bytes)}, sparse));
    std::reverse(buckets.begin(), buckets.end()); // gradients come in the reverse order of use
    made->reducer = std::make_shared<TimedReducer>(
        made->parameters, buckets, made->group, sparse, bucket_bytes, /*find_unused_parameters=*/false, view,
        std::unordered_map<size_t, std::string>{}, first_bucket_bytes, /*skip_all_reduce_unused_params=*/false,
        /*use_python_reducer=*/false, std::vector<int64_t>{});
    made->reducer->set_ddp_runtime_logging_sample_rate(1); // measures every pass
    *out = made.release();
  });
}

// Releases the gradients. Zeroing them in place would fail: they may be views of a Reducer's buckets, even of
// one that is gone.
int rh_zero_grad(torch::Tensor* const* parameters, size_t count) {
  return rh_guard([&] {
    for (size_t i = 0; i < count; i++) parameters[i]->mutable_grad().reset();
  });
}

// A collective when buckets are due to be rebuilt in the order in which gradients came: once, after the first step.
int rh_reducer_prepare_for_forward(RhReducer* reducer) {
  return rh_guard([&] {
    if (reducer->reducer->should_rebuild_buckets()) reducer->reducer->rebuild_buckets();
    reducer->reducer->prepare_for_forward();
  });
}

int rh_reducer_prepare_for_backward(RhReducer* reducer) {
  return rh_guard([&] { reducer->reducer->prepare_for_backward(std::vector<at::Tensor>{}); });
}

// With CUDA it waits for the end of the reduction.
int rh_reducer_waited(RhReducer* reducer, int64_t* out) {
  return rh_guard([&] { *out = reducer->reducer->waited(); });
}

int rh_reducer_free(RhReducer* reducer) {
  return rh_guard([&] { delete reducer; });
}

// Errors of the Reducer's collectives are thrown here, so it must not be tch's own call, which panics.
int rh_backward(const torch::Tensor* loss) {
  return rh_guard([&] { loss->backward(); });
}
}
