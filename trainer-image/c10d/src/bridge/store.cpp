// TCPStore and PrefixStore.
#include "bridge.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

using std::chrono::milliseconds;

extern "C" {

int rh_store_open(const char* host, uint16_t port, bool serve, int64_t timeout_ms, RhStore** out) {
  return rh_guard([&] {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = serve;
    options.waitWorkers = false; // workers come and go
    options.timeout = milliseconds(timeout_ms);
    auto store = c10::make_intrusive<c10d::TCPStore>(host, options);
    const uint16_t served = store->getPort();
    *out = new RhStore{std::move(store), served};
  });
}

int rh_store_prefix(const RhStore* store, const char* prefix, RhStore** out) {
  return rh_guard([&] {
    *out = new RhStore{c10::make_intrusive<c10d::PrefixStore>(prefix, store->store), store->port};
  });
}

int rh_store_set_timeout(const RhStore* store, int64_t timeout_ms) {
  return rh_guard([&] { store->store->setTimeout(milliseconds(timeout_ms)); });
}

uint16_t rh_store_port(const RhStore* store) {
  return store->port;
}

int rh_store_set(const RhStore* store, const char* key, const uint8_t* value, size_t length) {
  return rh_guard([&] { store->store->set(key, std::vector<uint8_t>(value, value + length)); });
}

// Waits until the key is set, at most the store's timeout. `consume` gets the bytes once.
int rh_store_get(const RhStore* store, const char* key, void* context, void (*consume)(void*, const uint8_t*, size_t)) {
  return rh_guard([&] {
    const std::vector<uint8_t> value = store->store->get(key);
    consume(context, value.data(), value.size());
  });
}

int rh_store_add(const RhStore* store, const char* key, int64_t delta, int64_t* out) {
  return rh_guard([&] { *out = store->store->add(key, delta); });
}

int rh_store_free(RhStore* store) {
  return rh_guard([&] { delete store; });
}
}
