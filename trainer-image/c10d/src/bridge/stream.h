#pragma once
#include <atomic>
#include <chrono>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <cstdint>
#include <memory>
#include <optional>

// Number of times that the bridge has made the host of this process wait for a device.
extern std::atomic<uint64_t> rh_num_host_syncs;

// A point in the work of a device. The work of a CPU is done when the call returns, so its events
// have passed.
struct RhEvent {
  std::optional<c10::Event> event;
  std::chrono::steady_clock::time_point at = std::chrono::steady_clock::now();

  static RhEvent* record(const c10::Device& device, bool timed = false) {
    auto made = std::make_unique<RhEvent>();
    if (device.is_cpu()) return made.release();
    made->event.emplace(device.type(), timed ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT);
    made->event->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    return made.release();
  }
};
