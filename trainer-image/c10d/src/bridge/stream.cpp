// Streams and events through libtorch's interface for all kinds of devices, so that this source
// needs no CUDA header.
#include "stream.h"

#include <ATen/ops/empty.h>

#include "guard.h"
#include "tensors.h"
#if defined(USE_C10D_NCCL)
#include <c10/cuda/CUDAFunctions.h>
#endif

std::atomic<uint64_t> rh_num_host_syncs{0};

namespace {
using c10::impl::VirtualGuardImpl;

c10::Device gpu(int device) {
  return c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device));
}

c10::Stream stream_of(int device, int64_t id) {
  return c10::Stream::unpack3(id, static_cast<c10::DeviceIndex>(device), c10::DeviceType::CUDA);
}
} // namespace

// `device` is the index of a GPU. For a CPU, Rust only calls the functions of events.
extern "C" {

uint64_t rh_host_syncs() {
  return rh_num_host_syncs;
}

int rh_stream_new(int device, int64_t* out) {
  return rh_guard([&] { *out = VirtualGuardImpl(c10::DeviceType::CUDA).getStreamFromGlobalPool(gpu(device)).id(); });
}

// Makes the stream the thread's current stream, and returns the previous one.
int rh_stream_exchange(int device, int64_t id, int64_t* before) {
  return rh_guard([&] { *before = VirtualGuardImpl(c10::DeviceType::CUDA).exchangeStream(stream_of(device, id)).id(); });
}

int rh_record_stream(const at::Tensor* tensor, int device, int64_t id) {
  return rh_guard([&] { tensor->record_stream(stream_of(device, id)); });
}

// Records on the current stream of the device; -1 is the CPU.
int rh_event_record(int device, bool timed, RhEvent** out) {
  return rh_guard([&] { *out = RhEvent::record(device < 0 ? c10::Device(c10::DeviceType::CPU) : gpu(device), timed); });
}

// The time between two timed events of one device that have passed.
int rh_event_elapsed(const RhEvent* from, const RhEvent* to, int64_t* nanoseconds) {
  return rh_guard([&] {
    TORCH_CHECK(from->event.has_value() == to->event.has_value(), "the events are of different devices");
    if (from->event)
      *nanoseconds = static_cast<int64_t>(from->event->elapsedTime(*to->event) * 1e6);
    else
      *nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(to->at - from->at).count();
  });
}

int rh_event_query(const RhEvent* event, bool* out) {
  return rh_guard([&] { *out = !event->event || event->event->query(); });
}

// Rust calls this before it waits for an event.
void rh_count_host_sync() {
  rh_num_host_syncs++;
}

// Later work in the current stream of the event's device waits for the event.
int rh_event_block(const RhEvent* event) {
  return rh_guard([&] {
    if (!event->event) return;
    const auto device = event->event->device();
    event->event->block(VirtualGuardImpl(device.type()).getStream(device));
  });
}

int rh_event_free(RhEvent* event) {
  return rh_guard([&] { delete event; });
}

// Copies a host tensor to a GPU through pinned memory, which the allocator keeps until the copy is
// done.
int rh_upload(const at::Tensor* tensor, int device, at::Tensor** out) {
  return rh_guard([&] {
    auto pinned = at::empty(tensor->sizes(), tensor->options().pinned_memory(true));
    pinned.copy_(*tensor);
    *out = new at::Tensor(pinned.to(gpu(device), /*non_blocking=*/true));
  });
}

// Allocates bytes of host memory, all 0.
int rh_host_bytes(int64_t length, int pinned, at::Tensor** out) {
  return rh_guard([&] {
    auto made = at::empty({length}, at::TensorOptions().dtype(at::kByte).pinned_memory(pinned != 0));
    made.zero_();
    *out = new at::Tensor(std::move(made));
  });
}

// Copies in the order of the current stream. The host does not wait if the memory of `to` is
// pinned.
int rh_copy_later(at::Tensor* to, const at::Tensor* from) {
  return rh_guard([&] { to->copy_(*from, /*non_blocking=*/true); });
}

#if defined(USE_C10D_NCCL)
// Sets the reaction to calls of libtorch that make the host wait for the device. 0: none, 1: a
// warning, 2: an error.
int rh_sync_debug(int mode) {
  return rh_guard([&] { c10::cuda::warning_state().set_sync_debug_mode(static_cast<c10::cuda::SyncDebugMode>(mode)); });
}
#endif
}
