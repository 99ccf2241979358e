// Process groups: Gloo, and NCCL if it is compiled in.
#include "group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <atomic>
#include <cstdlib>
#include <limits>

#include "bounded.h"
#include "counted.h"

#include <c10/core/DeviceGuard.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#ifdef USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

using std::chrono::milliseconds;

// Disables libtorch's flight recorder, unless the user has set the variable. The recorder is shared
// by all groups of a process, and each collective changes and reads its map without a lock
// (FlightRecorder::recordWithResetEnabled of 2.11), so groups of two threads crash in it. Nothing
// here reads the recorder. This runs before main, while there is one thread, because setting the
// environment later is not safe.
__attribute__((constructor)) static void rh_without_flight_recorder() {
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*replace=*/0);
}

c10::intrusive_ptr<c10d::ProcessGroup> rh_wrap(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const char* name, c10::DeviceType device,
    c10d::ProcessGroup::BackendType type, const c10::intrusive_ptr<c10d::Backend>& backend) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  group->setBackend(device, type, backend);
  group->setDefaultBackend(type);
  group->setGroupName(name);
  return group;
}

void rh_note_abort(const at::Tensor& aborted) {
  // Volatile, because the device can read the value at any time.
  *static_cast<volatile double*>(aborted.data_ptr<double>()) = std::numeric_limits<double>::quiet_NaN();
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

extern "C" {

int rh_group_gloo(const RhStore* store, int rank, int size, int64_t timeout_ms, const char* address, const char* name, RhGroup** out) {
  return rh_guard([&] {
    auto options = c10d::ProcessGroupGloo::Options::create(milliseconds(timeout_ms));
    // Without an address Gloo guesses one from the host name.
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
    auto backend = rh_bounded(c10::make_intrusive<c10d::ProcessGroupGloo>(store->store, rank, size, options));
    auto group = rh_wrap(store->store, rank, size, name, c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, backend);
    *out = new RhGroup(group, at::zeros({1}, at::kDouble));
  });
}

#ifdef USE_C10D_NCCL
int rh_group_nccl(const RhStore* store, int rank, int size, int64_t timeout_ms, int device, const char* name, RhGroup** out) {
  return rh_guard([&] {
    auto options = c10d::ProcessGroupNCCL::Options::create(true);
    options->timeout = milliseconds(timeout_ms);
    options->config.blocking = 0; // so that connecting has the timeout TORCH_NCCL_NONBLOCKING_TIMEOUT
    options->group_name = name;
    for (int i = 0; i < size; i++) options->global_ranks_in_group.push_back(i);
    auto backend = c10::make_intrusive<RhCounted<c10d::ProcessGroupNCCL>>(store->store, rank, size, options);
    auto group = rh_wrap(store->store, rank, size, name, c10::DeviceType::CUDA, c10d::ProcessGroup::BackendType::NCCL, backend);
    const at::Device own(at::kCUDA, static_cast<c10::DeviceIndex>(device));
    const c10::DeviceGuard guard(own); // this thread may have another device (CUDAGuard would need libcudart)
    group->setBoundDeviceId(own);
    backend->setSequenceNumberForGroup();
    backend->eagerConnectSingleDevice(own);
    // Waits until all ranks are connected. The first collective would do this, too, but while
    // holding the lock that abort() needs. Here no other thread has the group yet.
    backend->getCommPtr();
    *out = new RhGroup(group, at::empty({1}, at::TensorOptions().dtype(at::kDouble).pinned_memory(true)).zero_());
  });
}
#endif

// Whether the library's own watchdog has seen an error or a timeout. NCCL's collectives report
// neither.
int rh_group_failed(const RhGroup* group, bool* out) {
  return rh_guard([&] { *out = group->group->getDefaultBackend()->getError() != c10d::ErrorType::SUCCESS; });
}

// Sets the timeout of later collectives.
int rh_group_set_timeout(const RhGroup* group, int64_t timeout_ms) {
  return rh_guard([&] { group->group->getDefaultBackend()->setTimeout(std::chrono::milliseconds(timeout_ms)); });
}

// NCCL: waits for current collectives, and for the other ranks of the host to do the same. Gloo: no
// effect.
int rh_group_shutdown(const RhGroup* group) {
  return rh_guard([&] { group->group->shutdown(); });
}

// NCCL: call it once per group, because two aborts wait for each other. Gloo: see bounded.cpp.
int rh_group_abort(const RhGroup* group) {
  return rh_guard([&] {
    rh_note_abort(group->aborted);
    group->group->abort();
  });
}

int rh_group_free(RhGroup* group) {
  return rh_guard([&] { delete group; });
}
}
