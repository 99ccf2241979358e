#pragma once
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

struct RhStore {
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::Store> root; // without prefixes
  std::string prefix; // prefix of this store's keys in the root
  uint16_t port; // port of the server, in this process or another
};
