// From C++ exceptions to a kind and a text.
#include "bridge.h"

#include <c10/util/Exception.h>
#include <string>

namespace {
thread_local std::string message;

bool contains(const char* part) {
  return message.find(part) != std::string::npos;
}

// Gloo throws plain runtime errors, so their kind is only in their text.
int kind_by_text() {
  if (contains("imed out") || contains("timeout")) return RH_TIMEOUT;
  for (const char* sign : {"onnection reset", "onnection closed", "onnection refused", "roken pipe", "onnect", "Socket", "recvBytes", "sendBytes"})
    if (contains(sign)) return RH_CONNECTION_LOST;
  return RH_OTHER;
}
} // namespace

int rh_caught(std::exception_ptr exception) noexcept {
  try {
    std::rethrow_exception(exception);
  } catch (const c10::DistNetworkError& error) {
    message = error.what_without_backtrace();
    return contains("imed out") ? RH_TIMEOUT : RH_CONNECTION_LOST;
  } catch (const c10::DistStoreError& error) {
    message = error.what_without_backtrace();
    return contains("imed out") || contains("timeout") ? RH_TIMEOUT : RH_CONNECTION_LOST;
  } catch (const c10::DistBackendError& error) {
    // NCCL: a peer is gone, or the communicator was aborted because one is.
    message = error.what_without_backtrace();
    return contains("imed out") || contains("timeout") ? RH_TIMEOUT : RH_CONNECTION_LOST;
  } catch (const c10::Error& error) {
    message = error.what_without_backtrace();
  } catch (const std::exception& error) {
    message = error.what();
  } catch (...) {
    message = "an exception that is no std::exception";
  }
  return kind_by_text();
}

extern "C" const char* rh_error_message() {
  return message.c_str();
}
