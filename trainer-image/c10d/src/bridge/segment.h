// A part of a model whose code is in Rust, and what a node of the graph needs to run it again.
#pragma once
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

// The layout of `RhSegment` in src/ffi/tools.rs.
struct RhSegment {
  void* context;
  // Computes the output. Returns false if the segment has failed; the reason is passed to
  // rh_segment_failed().
  bool (*run)(void* context, const at::Tensor* const* inputs, size_t count, at::Tensor** output, std::string* words);
  void (*free)(void* context);
};

// Owns a segment.
class RhOwnedSegment {
 public:
  explicit RhOwnedSegment(const RhSegment& segment) : segment_(segment) {}
  ~RhOwnedSegment() {
    free();
  }
  RhOwnedSegment(const RhOwnedSegment&) = delete;
  RhOwnedSegment& operator=(const RhOwnedSegment&) = delete;

  // `inputs`: the activation, then the parameters.
  at::Tensor run(const std::vector<at::Tensor>& inputs) {
    std::vector<const at::Tensor*> pointers;
    for (const auto& input : inputs) pointers.push_back(&input);
    at::Tensor* output = nullptr;
    std::string words;
    const bool is_done = segment_.run(segment_.context, pointers.data(), pointers.size(), &output, &words);
    const std::unique_ptr<at::Tensor> owned(output);
    TORCH_CHECK(is_done && owned, words);
    return *owned;
  }

  void free() {
    if (void* context = std::exchange(segment_.context, nullptr)) segment_.free(context);
  }

 private:
  RhSegment segment_;
};

// The autocast state of a thread. The cache of cast weights belongs to the process.
class RhAutocastState {
 public:
  static RhAutocastState current() {
    RhAutocastState state;
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

class RhAutocastGuard {
 public:
  explicit RhAutocastGuard(const RhAutocastState& state) : before_(RhAutocastState::current()) {
    state.set();
    at::autocast::increment_nesting();
  }
  ~RhAutocastGuard() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    before_.set();
  }
  RhAutocastGuard(const RhAutocastGuard&) = delete;
  RhAutocastGuard& operator=(const RhAutocastGuard&) = delete;

 private:
  const RhAutocastState before_;
};
