// The device of a thread, through the interface that all kinds of devices share, so that it needs no CUDA header.
#include <c10/core/Device.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "guard.h"

extern "C" {

int rh_set_device(int device) {
  return rh_guard([&] {
    const c10::impl::VirtualGuardImpl devices(c10::DeviceType::CUDA);
    devices.setDevice(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)));
  });
}
}
