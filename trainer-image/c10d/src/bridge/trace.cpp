// Kineto, the profiler of libtorch.
#include <torch/csrc/autograd/profiler_kineto.h>

#include "guard.h"

extern "C" {

int rh_trace_start(bool cuda) {
  return rh_guard([&] {
    using torch::profiler::impl::ActivityType;
    std::set<ActivityType> activities{ActivityType::CPU};
    if (cuda) activities.insert(ActivityType::CUDA);
    const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
    torch::autograd::profiler::prepareProfiler(config, activities);
    torch::autograd::profiler::enableProfiler(config, activities, {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE});
  });
}

// Null discards the trace.
int rh_trace_stop(const char* path) {
  return rh_guard([&] {
    const auto result = torch::autograd::profiler::disableProfiler();
    if (path) result->save(path);
  });
}
}
