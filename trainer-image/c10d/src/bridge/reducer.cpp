// c10d's Reducer: reduces buckets of gradients while the backward pass still runs.
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <deque>

#include "compress.h"
#include "digest.h"
#include "group.h"
#include "power_sgd.h"
#include "stream.h"
#include "tensors.h"

namespace {
using Buckets = std::vector<std::vector<size_t>>;

// Fails on all ranks if their layouts differ. A Reducer over such a group would hang or end the
// process.
void verify_layout(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const Buckets& buckets, bool is_given, const at::Device& device) {
  size_t hash = is_given;
  for (const auto& bucket : buckets) {
    hash = c10::hash_combine(hash, bucket.size());
    for (const size_t index : bucket) hash = c10::hash_combine(hash, index);
  }
  // A double holds 52 bits exactly. The maximum of the negative value gives the minimum.
  const auto part = static_cast<double>(hash >> 12);
  std::vector<at::Tensor> extremes{at::tensor({part, -part}, at::kDouble).to(device)};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp(c10d::ReduceOp::MAX);
  group->allreduce(extremes, options)->wait();
  const auto found = extremes[0].cpu();
  TORCH_CHECK(found[0].item<double>() == -found[1].item<double>(), "the ranks have different layouts of gradient buckets");
}

void verify_given(const Buckets& buckets, size_t count) {
  std::vector<bool> seen(count, false);
  size_t found = 0;
  for (const auto& bucket : buckets) {
    TORCH_CHECK(!bucket.empty(), "a gradient bucket without a parameter");
    for (const size_t index : bucket) {
      TORCH_CHECK(index < count && !seen[index], "parameter ", index, " of ", count, " is in two gradient buckets or is none");
      seen[index] = true;
      found++;
    }
  }
  TORCH_CHECK(found == count, count - found, " of ", count, " parameters are in no gradient bucket");
}
} // namespace

// Measures each pass with a separate timer. So the timer of a pass on a GPU can be read when the
// pass has ended, while the next pass runs.
class TimedReducer : public c10d::Reducer {
 public:
  using c10d::Reducer::Reducer;
  using Event = c10d::Timer::Event;

  void fix_buckets() {
    has_rebuilt_bucket_ = true; // then rebuilding is never due
  }

  bool has_fixed_buckets() const {
    return !should_rebuild_buckets();
  }

  Buckets buckets() const {
    Buckets layout;
    for (const auto& bucket : buckets_) layout.push_back(bucket.variable_indices);
    return layout;
  }

  // The digest of the buckets after the last pass.
  at::Tensor digest() const {
    std::vector<at::Tensor> reduced;
    for (const auto& bucket : buckets_) reduced.push_back(bucket.gradients);
    return rh_digest(reduced);
  }

  // Nanoseconds between the last gradient of this rank and the end of the reduction; -1 if they are
  // unknown.
  int64_t waited() {
    const auto own = measure(timer_.get());
    return own >= 0 || passes_.empty() ? own : measure(passes_.back().timer.get());
  }

  // Stores the timer of the last pass, with an event that follows the pass on the device.
  void end_pass() {
    if (!timer_ || !timer_->getTimestamp(Event::kBackwardCommEnd)) return;
    const auto device = params_[0].device();
    std::optional<c10::Event> end;
    if (!device.is_cpu()) {
      end.emplace(device.type());
      end->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    }
    passes_.push_back({std::move(timer_), std::move(end)});
    if (passes_.size() > kMostPasses) passes_.pop_front(); // the caller does not read them
    timer_ = c10d::TimerRegistry()->Create(device.type(), device);
  }

  // The wait of the oldest pass that has ended and was not returned yet, without waiting; -1 if
  // there is none.
  int64_t waited_before() {
    if (passes_.empty() || (passes_.front().end && !passes_.front().end->query())) return -1;
    auto pass = std::move(passes_.front());
    passes_.pop_front();
    return measure(pass.timer.get());
  }

 private:
  static constexpr size_t kMostPasses = 8;

  struct Pass {
    std::unique_ptr<c10d::Timer> timer;
    std::optional<c10::Event> end;
  };

  static int64_t measure(c10d::Timer* timer) {
    if (!timer || !timer->getTimestamp(Event::kBackwardCommEnd)) return -1;
    return timer->measureDifference(Event::kBackwardComputeEnd, Event::kBackwardCommEnd).value_or(-1);
  }

  std::deque<Pass> passes_;
};

struct RhReducer {
  std::vector<at::Tensor> parameters;
  c10::intrusive_ptr<c10d::ProcessGroup> group; // outlives the reducer's collectives
  std::shared_ptr<TimedReducer> reducer;
  bool learns_graph; // a static graph, before its first pass that synchronizes
  PowerSgdHook* power_sgd = nullptr; // the reducer's
};

// As ReducerOptions in Rust. The layout has `bucket_count` buckets of `bucket_sizes[i]` indices
// each; 0 means that no layout is given.
struct RhReducerOptions {
  int64_t bucket_bytes, first_bucket_bytes;
  bool view, find_unused, static_graph;
  int hook; // 0: none, 1: bf16, 2: fp16, 3: PowerSGD
  RhPowerSgd power_sgd;
  size_t whole_count; // parameters that PowerSGD never compresses
  const size_t* whole_indices;
  size_t bucket_count;
  const size_t* bucket_sizes;
  const size_t* bucket_indices;
};

extern "C" {

int rh_reducer_new(RhTensors parameters, size_t count, const RhGroup* group, const RhReducerOptions* options, RhReducer** out) {
  return rh_guard([&] {
    auto made = std::make_unique<RhReducer>();
    made->group = group->group;
    made->parameters = rh_list(parameters, count);
    c10d::verify_params_across_processes(made->group, made->parameters, std::nullopt);
    const std::vector<bool> sparse(count, false);
    Buckets buckets;
    const bool is_given = options->bucket_count > 0;
    if (is_given) {
      const size_t* next = options->bucket_indices;
      for (size_t i = 0; i < options->bucket_count; next += options->bucket_sizes[i++])
        buckets.emplace_back(next, next + options->bucket_sizes[i]);
      verify_given(buckets, count);
    } else {
      buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(
          made->parameters, {static_cast<size_t>(options->first_bucket_bytes), static_cast<size_t>(options->bucket_bytes)}, sparse));
      std::reverse(buckets.begin(), buckets.end()); // gradients arrive in the reverse order of use
    }
    verify_layout(made->group, buckets, is_given, made->parameters[0].device());
    made->reducer = std::make_shared<TimedReducer>(
        made->parameters, buckets, made->group, sparse, options->bucket_bytes, options->find_unused, options->view,
        std::unordered_map<size_t, std::string>{}, options->first_bucket_bytes, /*skip_all_reduce_unused_params=*/false,
        /*use_python_reducer=*/false, std::vector<int64_t>{});
    if (is_given) made->reducer->fix_buckets();
    made->learns_graph = options->static_graph;
    if (options->static_graph) made->reducer->set_static_graph();
    if (options->hook == 3) {
      std::vector<at::Tensor> whole;
      for (size_t i = 0; i < options->whole_count; i++) whole.push_back(made->parameters.at(options->whole_indices[i]));
      auto hook = std::make_unique<PowerSgdHook>(made->group, options->power_sgd, made->parameters[0].device(), whole);
      made->power_sgd = hook.get();
      made->reducer->register_comm_hook(std::move(hook));
    } else if (options->hook != 0) {
      made->reducer->register_comm_hook(std::make_unique<CompressHook>(made->group, options->hook == 1 ? at::kBFloat16 : at::kHalf));
    }
    made->reducer->set_ddp_runtime_logging_sample_rate(1); // measures every pass
    *out = made.release();
  });
}

// A collective once, after the first step, when buckets are rebuilt in the order in which gradients
// arrived.
int rh_reducer_prepare_for_forward(RhReducer* reducer) {
  return rh_guard([&] {
    reducer->reducer->end_pass();
    if (reducer->reducer->should_rebuild_buckets()) reducer->reducer->rebuild_buckets();
    reducer->reducer->prepare_for_forward();
  });
}

// `outputs` are those of the forward pass. A Reducer that looks for unused parameters needs them,
// and so does the first pass of a static graph. That pass only counts the gradients. Its reduction
// begins when the pass is over; a callback within the pass must start it, as in
// DistributedDataParallel.
int rh_reducer_prepare_for_backward(RhReducer* reducer, RhTensors outputs, size_t count) {
  return rh_guard([&] {
    TORCH_CHECK(!reducer->learns_graph || count > 0, "the first backward pass of a static graph needs the outputs of the forward pass");
    const auto list = rh_list(outputs, count);
    reducer->reducer->prepare_for_backward(list);
    if (!std::exchange(reducer->learns_graph, false)) return;
    list[0].register_hook([of = std::weak_ptr<TimedReducer>(reducer->reducer)](const at::Tensor&) {
      torch::autograd::Engine::get_default_engine().queue_callback([of] {
        if (const auto live = of.lock()) live->delay_all_reduce();
      });
    });
  });
}

// The digest of the last pass's sums, which have the same bits on all ranks. With PowerSGD it is
// the digest of the summed factors, because the gradients that each rank computes from them may
// differ between device models.
int rh_reducer_digest(const RhReducer* reducer, at::Tensor** out) {
  return rh_guard([&] {
    const auto of_hook = reducer->power_sgd ? reducer->power_sgd->digest() : at::Tensor();
    *out = new at::Tensor(of_hook.defined() ? of_hook : reducer->reducer->digest());
  });
}

int rh_reducer_end_pass(RhReducer* reducer) {
  return rh_guard([&] { reducer->reducer->end_pass(); });
}

// With CUDA this waits for the end of the reduction.
int rh_reducer_waited(RhReducer* reducer, int64_t* out) {
  return rh_guard([&] {
    rh_num_host_syncs++;
    *out = reducer->reducer->waited();
  });
}

int rh_reducer_waited_before(RhReducer* reducer, int64_t* out) {
  return rh_guard([&] { *out = reducer->reducer->waited_before(); });
}

// Calls `consume` once for each bucket, with the indices of its parameters.
int rh_reducer_buckets(const RhReducer* reducer, void* context, void (*consume)(void*, const size_t*, size_t)) {
  return rh_guard([&] {
    for (const auto& bucket : reducer->reducer->buckets()) consume(context, bucket.data(), bucket.size());
  });
}

bool rh_reducer_has_final_buckets(const RhReducer* reducer) {
  return reducer->reducer->has_fixed_buckets();
}

// The following three functions have an effect only with PowerSGD.
int rh_reducer_forget(RhReducer* reducer) {
  return rh_guard([&] {
    if (reducer->power_sgd) reducer->power_sgd->forget();
  });
}

int rh_reducer_rescale(RhReducer* reducer, double factor) {
  return rh_guard([&] {
    if (reducer->power_sgd) reducer->power_sgd->rescale(factor);
  });
}

// Returns -1 if the hook does not count bytes.
int64_t rh_reducer_payload_bytes(const RhReducer* reducer) {
  return reducer->power_sgd ? reducer->power_sgd->payload_bytes() : -1;
}

int rh_reducer_free(RhReducer* reducer) {
  return rh_guard([&] { delete reducer; });
}
}
