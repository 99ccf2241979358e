#pragma once
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>

#include "guard.h"
#include "store.h"

struct RhGroup {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
};

// The process group whose collectives a backend does, on tensors of one kind of device.
c10::intrusive_ptr<c10d::ProcessGroup> rh_wrap(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const char* name, c10::DeviceType device,
    c10d::ProcessGroup::BackendType type, const c10::intrusive_ptr<c10d::Backend>& backend);

// So long has this process waited for peers within a pass: see rh_take_sum_wait.
void rh_count_wait(std::chrono::nanoseconds waited);
