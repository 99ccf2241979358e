// Memory use and versions, for metrics and checks.
#include <c10/core/CachingDeviceAllocator.h>

#include <cstring>

#include "guard.h"
#if defined(USE_C10D_NCCL)
#include <nccl.h>
#include <torch/csrc/distributed/c10d/NCCLUtils.hpp>
#endif

// As DeviceMemory in Rust, in bytes.
struct RhMemory {
  int64_t allocated, peak_allocated, reserved, peak_reserved;
  int64_t retries, failures;
};

extern "C" {

int rh_device_memory(int device, RhMemory* out) {
  return rh_guard([&] {
    const auto stats = c10::getDeviceAllocator(c10::DeviceType::CUDA)->getDeviceStats(static_cast<c10::DeviceIndex>(device));
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto &used = stats.allocated_bytes[all], &held = stats.reserved_bytes[all];
    *out = {used.current, used.peak, held.current, held.peak, stats.num_alloc_retries, stats.num_ooms};
  });
}

int rh_reset_peak_memory(int device) {
  return rh_guard([&] { c10::getDeviceAllocator(c10::DeviceType::CUDA)->resetPeakStats(static_cast<c10::DeviceIndex>(device)); });
}

#if defined(USE_C10D_NCCL)
// Versions of the loaded NCCL and of its headers at compile time, as NCCL_VERSION_CODE.
int rh_nccl_versions(int* loaded, int* compiled) {
  return rh_guard([&] {
    const auto [major, minor, patch] = c10d::getNcclVersionTuple();
    *loaded = NCCL_VERSION(major, minor, patch);
    *compiled = NCCL_VERSION_CODE;
  });
}
#endif
}
