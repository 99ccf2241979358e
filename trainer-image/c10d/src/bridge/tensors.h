// Lists of tensors as Rust passes them: arrays of pointers to tensors.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

using RhTensors = at::Tensor* const*;

inline std::vector<at::Tensor> rh_list(RhTensors tensors, size_t count) {
  std::vector<at::Tensor> list;
  list.reserve(count);
  for (size_t i = 0; i < count; i++) list.push_back(*tensors[i]);
  return list;
}
