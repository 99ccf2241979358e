// The C ABI between Rust and libtorch. Every function catches every exception and returns RH_OK or
// the class of the exception. rh_error_message() returns its text on the same thread, until the
// next call. This header includes nothing of libtorch, so that each source includes only what it
// needs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <exception>

enum RhStatus : int { RH_OK = 0, RH_ERROR = 1, RH_DISTRIBUTED = 2, RH_OUT_OF_MEMORY = 3, RH_ACCELERATOR = 4 };

// Keeps the exception's text for rh_error_message() and returns its class.
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
