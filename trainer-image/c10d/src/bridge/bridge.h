// The C ABI between Rust and c10d. Every entry catches every exception: it returns RH_OK, or a kind of
// error whose text rh_error_message() gives, on the same thread, until the next call.
#pragma once
#include <torch/torch.h>

#include <exception>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

enum RhStatus : int { RH_OK = 0, RH_OTHER = 1, RH_CONNECTION_LOST = 2, RH_TIMEOUT = 3 };

struct RhStore {
  c10::intrusive_ptr<c10d::Store> store;
  uint16_t port; // where it is served, by this process or another
};

struct RhGroup {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
};

class TimedReducer;

struct RhReducer {
  std::vector<at::Tensor> parameters;
  c10::intrusive_ptr<c10d::ProcessGroup> group; // outlives the reducer's collectives
  std::shared_ptr<TimedReducer> reducer;
};

// The process group whose collectives a backend does, on tensors of one kind of device.
c10::intrusive_ptr<c10d::ProcessGroup> rh_wrap(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const char* name, c10::DeviceType device,
    c10d::ProcessGroup::BackendType type, const c10::intrusive_ptr<c10d::Backend>& backend);

// Keeps the exception's text for rh_error_message() and says of what kind it is.
int rh_caught(std::exception_ptr exception) noexcept;

template <class Body>
int rh_guard(Body body) noexcept {
  try {
    body();
    return RH_OK;
  } catch (...) {
    return rh_caught(std::current_exception());
  }
}
