// Counts the memory of tensors on the CPU, for tests.
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>

#include "guard.h"

namespace {
class Counting final : public c10::Allocator {
 public:
  static Counting& only() {
    static Counting counting;
    return counting;
  }

  c10::DataPtr allocate(size_t bytes) override {
    auto part = base_->allocate(bytes);
    const auto total = held_ += static_cast<int64_t>(bytes);
    auto peak = peak_.load();
    while (total > peak && !peak_.compare_exchange_weak(peak, total)) {}
    void* data = part.get();
    const auto free = part.get_deleter();
    return {data, new Part{part.release_context(), static_cast<int64_t>(bytes), free}, drop, c10::kCPU};
  }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  std::atomic<int64_t> held_{0}, peak_{0};

 private:
  struct Part {
    void* context;
    int64_t bytes;
    c10::DeleterFnPtr free;
  };

  static void drop(void* context) {
    auto* part = static_cast<Part*>(context);
    only().held_ -= part->bytes;
    part->free(part->context);
    delete part;
  }

  c10::Allocator* const base_ = c10::GetDefaultCPUAllocator();
};
} // namespace

// Counts the tensors that are created from now on.
extern "C" void rh_count_memory() {
  c10::SetAllocator(c10::kCPU, &Counting::only(), 100);
}

// The bytes that tensors hold, and the most since the last call.
extern "C" void rh_counted_memory(int64_t* held, int64_t* peak) {
  auto& counting = Counting::only();
  *held = counting.held_;
  *peak = counting.peak_.exchange(*held);
}
