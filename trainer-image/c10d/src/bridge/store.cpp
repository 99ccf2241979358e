// TCPStore and PrefixStore.
#include "store.h"

#include <dlfcn.h>
#include <netdb.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "guard.h"

using std::chrono::milliseconds;

extern "C" {

// Replaces the C library's function for libtorch. libtorch looks up the name of each peer of a
// store for its log, on both sides of each connection and on the only thread of a store. If the
// name server does not answer, each lookup takes 5 s or more. The numeric address is enough for the
// log.
int getnameinfo(
    const sockaddr* address, socklen_t length, char* host, socklen_t host_length, char* service, socklen_t service_length,
    int flags) {
  using Function = int (*)(const sockaddr*, socklen_t, char*, socklen_t, char*, socklen_t, int);
  static const auto of_libc = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "getnameinfo"));
  return of_libc(address, length, host, host_length, service, service_length, flags | NI_NUMERICHOST);
}

// `listening`: descriptor of a socket that is bound to `port`, of which the store takes ownership;
// -1 to listen on all interfaces.
int rh_store_open(const char* host, uint16_t port, bool serve, int listening, int64_t timeout_ms, RhStore** out) {
  return rh_guard([&] {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = serve;
    if (listening >= 0) options.masterListenFd = listening;
    options.waitWorkers = false; // workers come and go
    options.timeout = milliseconds(timeout_ms);
    auto store = c10::make_intrusive<c10d::TCPStore>(host, options);
    const uint16_t served = store->getPort();
    *out = new RhStore{store, store, "", served};
  });
}

int rh_store_prefix(const RhStore* store, const char* prefix, RhStore** out) {
  return rh_guard([&] {
    *out = new RhStore{
        c10::make_intrusive<c10d::PrefixStore>(prefix, store->store), store->root, store->prefix + prefix + "/", store->port};
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

// Waits until the key is set, at most for the store's timeout. Calls `consume` once with the bytes.
int rh_store_get(const RhStore* store, const char* key, void* context, void (*consume)(void*, const uint8_t*, size_t)) {
  return rh_guard([&] {
    const std::vector<uint8_t> value = store->store->get(key);
    consume(context, value.data(), value.size());
  });
}

int rh_store_add(const RhStore* store, const char* key, int64_t delta, int64_t* out) {
  return rh_guard([&] { *out = store->store->add(key, delta); });
}

int rh_store_delete(const RhStore* store, const char* key, bool* out) {
  return rh_guard([&] { *out = store->store->deleteKey(key); });
}

int rh_store_num_keys(const RhStore* store, int64_t* out) {
  return rh_guard([&] { *out = store->root->getNumKeys(); });
}

// Deletes the keys that start with this store's prefix.
int rh_store_clear(const RhStore* store, uint64_t* out) {
  return rh_guard([&] {
    *out = 0;
    for (const auto& key : store->root->listKeys()) {
      // TCPStore adds a '/' before each key, and its list may contain it.
      const size_t skipped = key.compare(0, 1, "/") == 0 ? 1 : 0;
      if (key.compare(skipped, store->prefix.size(), store->prefix) != 0) continue;
      if (store->root->deleteKey(key.substr(skipped))) ++*out;
    }
  });
}

int rh_store_free(RhStore* store) {
  return rh_guard([&] { delete store; });
}
}
