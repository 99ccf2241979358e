// The device of a thread, through libtorch's interface for all kinds of devices, so that this
// source needs no CUDA header.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "guard.h"
#if defined(USE_C10D_NCCL)
#include <c10/cuda/CUDAFunctions.h>
#endif

extern "C" {

#if defined(USE_C10D_NCCL)
// Number of GPUs that CUDA can use. If there is none, the exception has the driver's message, which
// device_count() would drop.
int rh_num_gpus(int* out) {
  return rh_guard([&] { *out = c10::cuda::device_count_ensure_non_zero(); });
}
#endif

// Releases cached memory of libtorch's allocator to the GPU.
int rh_empty_cache() {
  return rh_guard([&] {
    auto* allocator = c10::getDeviceAllocator(c10::DeviceType::CUDA);
    if (allocator->initialized()) allocator->emptyCache();
  });
}

int rh_set_device(int device) {
  return rh_guard([&] {
    const c10::impl::VirtualGuardImpl devices(c10::DeviceType::CUDA);
    devices.setDevice(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)));
  });
}
}
