#pragma once
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>

#include "guard.h"
#include "store.h"

struct RhGroup {
  RhGroup(c10::intrusive_ptr<c10d::ProcessGroup> group, at::Tensor aborted) : group(std::move(group)), aborted(std::move(aborted)) {}

  c10::intrusive_ptr<c10d::ProcessGroup> group;
  // A flag in host memory that the device of the group can read: 0, and NaN from just before this
  // process aborts the group. If the device reads 0 after a collective, no abort of this process
  // has broken that collective. f64, one element.
  at::Tensor aborted;
};

// Must be called before the group is aborted.
void rh_note_abort(const at::Tensor& aborted);

// Creates a process group that runs its collectives on a backend, for tensors of one kind of
// device.
c10::intrusive_ptr<c10d::ProcessGroup> rh_wrap(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const char* name, c10::DeviceType device,
    c10d::ProcessGroup::BackendType type, const c10::intrusive_ptr<c10d::Backend>& backend);

// Adds to the time that this process has waited for peers within passes: see rh_take_sum_wait.
void rh_count_wait(std::chrono::nanoseconds waited);
