// Autocast and the switches of at::globalContext().
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

#include "guard.h"

namespace {
c10::DeviceType type_of(bool cuda) {
  return cuda ? c10::DeviceType::CUDA : c10::DeviceType::CPU;
}
} // namespace

// The state of a thread before the guard.
struct RhAutocast {
  bool cuda, enabled;
  int dtype;
};

// As Numerics in Rust.
struct RhNumerics {
  bool tf32, benchmark, deterministic;
};

extern "C" {

int rh_autocast_enter(bool cuda, bool enabled, int dtype, RhAutocast* before) {
  return rh_guard([&] {
    const auto device = type_of(cuda);
    *before = {cuda, at::autocast::is_autocast_enabled(device), static_cast<int>(at::autocast::get_autocast_dtype(device))};
    if (enabled) at::autocast::set_autocast_dtype(device, static_cast<at::ScalarType>(dtype));
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::increment_nesting();
  });
}

// Leaving the outermost guard releases the cached casts of weights.
int rh_autocast_leave(const RhAutocast* before) {
  return rh_guard([&] {
    const auto device = type_of(before->cuda);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device, before->enabled);
    at::autocast::set_autocast_dtype(device, static_cast<at::ScalarType>(before->dtype));
  });
}

int rh_numerics_set(const RhNumerics* numerics) {
  return rh_guard([&] {
    auto& context = at::globalContext();
    context.setAllowTF32CuBLAS(numerics->tf32);
    context.setAllowTF32CuDNN(numerics->tf32);
    context.setBenchmarkCuDNN(numerics->benchmark);
    context.setDeterministicCuDNN(numerics->deterministic);
    context.setDeterministicAlgorithms(numerics->deterministic, /*warn_only=*/false);
    // Do not fill memory that a kernel overwrites anyway: only reads of uninitialized memory would
    // differ.
    context.setDeterministicFillUninitializedMemory(false);
  });
}

int rh_numerics_get(RhNumerics* out) {
  return rh_guard([&] {
    auto& context = at::globalContext();
    *out = {context.allowTF32CuBLAS() && context.allowTF32CuDNN(), context.benchmarkCuDNN(), context.deterministicAlgorithms()};
  });
}
}
