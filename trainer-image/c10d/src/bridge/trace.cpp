// Kineto, the profiler of libtorch.
#include <ATen/record_function.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <atomic>

#include "guard.h"

struct RhRecording {
  std::unique_ptr<torch::autograd::profiler::ProfilerResult> result;
};

namespace {

const std::unordered_set<at::RecordScope> kScopes{at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE};

// Number of operations in the running trace, and the callback that counts them. A process has one
// trace at a time.
std::atomic<uint64_t> num_operations{0};
at::CallbackHandle counter = at::INVALID_CALLBACK_HANDLE;

std::unique_ptr<at::ObserverContext> count(const at::RecordFunction&) {
  num_operations.fetch_add(1, std::memory_order_relaxed);
  return nullptr;
}

}  // namespace

extern "C" {

int rh_trace_start(bool cuda) {
  return rh_guard([&] {
    using torch::profiler::impl::ActivityType;
    std::set<ActivityType> activities{ActivityType::CPU};
    if (cuda) activities.insert(ActivityType::CUDA);
    const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
    torch::autograd::profiler::prepareProfiler(config, activities);
    torch::autograd::profiler::enableProfiler(config, activities, kScopes);
    num_operations = 0;
    counter = at::addThreadLocalCallback(at::RecordFunctionCallback(count).scopes(kScopes));
  });
}

uint64_t rh_trace_num_operations() { return num_operations.load(std::memory_order_relaxed); }

// Null discards the recording.
int rh_trace_stop(RhRecording** out) {
  return rh_guard([&] {
    at::removeCallback(counter);
    auto result = torch::autograd::profiler::disableProfiler();
    if (out) *out = new RhRecording{std::move(result)};
  });
}

// Call this once per recording, because Kineto consumes the events. Any thread may call it, also
// while another recording runs.
int rh_recording_write(RhRecording* recording, const char* path) {
  return rh_guard([&] { recording->result->save(path); });
}

int rh_recording_free(RhRecording* recording) {
  return rh_guard([&] { delete recording; });
}
}
