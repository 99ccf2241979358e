// Maps C++ exceptions to a class and a text. Rust distinguishes the kinds: see error.rs.
#include <c10/util/Exception.h>

#include <string>

#include "guard.h"

namespace {
thread_local std::string message;
}

int rh_caught(std::exception_ptr exception) noexcept {
  try {
    std::rethrow_exception(exception);
  } catch (const c10::OutOfMemoryError& error) {
    message = error.what_without_backtrace();
    return RH_OUT_OF_MEMORY;
  } catch (const c10::AcceleratorError& error) {
    message = error.what_without_backtrace();
    return RH_ACCELERATOR;
  } catch (const c10::DistError& error) {
    message = error.what_without_backtrace();
    return RH_DISTRIBUTED;
  } catch (const c10::Error& error) {
    message = error.what_without_backtrace();
  } catch (const std::bad_alloc& error) {
    message = error.what();
    return RH_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    message = error.what();
  } catch (...) {
    message = "an exception that is no std::exception";
  }
  return RH_ERROR;
}

extern "C" const char* rh_error_message() {
  return message.c_str();
}
