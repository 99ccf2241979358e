#pragma once
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>

#include "guard.h"
#include "store.h"

struct RhGroup {
  RhGroup(c10::intrusive_ptr<c10d::ProcessGroup> group, at::Tensor aborted) : group(std::move(group)), aborted(std::move(aborted)) {}

  c10::intrusive_ptr<c10d::ProcessGroup> group;
  // Host memory that the device of the group can read: 0, and NaN from the moment before this process aborts the group. A device that
  // reads it after a collective knows whether an abort can have broken that. f64, one element.
  at::Tensor aborted;
};

// To be called before the group is aborted.
void rh_note_abort(const at::Tensor& aborted);

// The process group whose collectives a backend does, on tensors of one kind of device.
c10::intrusive_ptr<c10d::ProcessGroup> rh_wrap(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const char* name, c10::DeviceType device,
    c10d::ProcessGroup::BackendType type, const c10::intrusive_ptr<c10d::Backend>& backend);

// So long has this process waited for peers within a pass: see rh_take_sum_wait.
void rh_count_wait(std::chrono::nanoseconds waited);
