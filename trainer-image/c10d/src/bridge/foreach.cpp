// Operations on lists of tensors, each in a few kernels for the whole list.
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>

#include "guard.h"
#include "tensors.h"

extern "C" {

// `out` must have room for `count` handles.
int rh_foreach_norm(RhTensors tensors, size_t count, double order, at::Tensor** out) {
  return rh_guard([&] {
    c10::AutoGradMode no_grad(false);
    const auto norms = at::_foreach_norm(rh_list(tensors, count), order, at::kFloat);
    for (size_t i = 0; i < count; i++) out[i] = new at::Tensor(norms[i]);
  });
}

int rh_total_norm(RhTensors tensors, size_t count, at::Tensor** out) {
  return rh_guard([&] {
    c10::AutoGradMode no_grad(false);
    const auto norms = at::_foreach_norm(rh_list(tensors, count), 2, at::kFloat);
    *out = new at::Tensor(at::linalg_vector_norm(at::stack(norms), 2));
  });
}

int rh_foreach_sqrt(RhTensors tensors, size_t count) {
  return rh_guard([&] {
    c10::AutoGradMode no_grad(false);
    at::_foreach_sqrt_(rh_list(tensors, count));
  });
}

int rh_foreach_scalar(int operation, RhTensors tensors, size_t count, double value) {
  return rh_guard([&] {
    c10::AutoGradMode no_grad(false);
    const auto list = rh_list(tensors, count);
    switch (operation) {
      case 0: return at::_foreach_add_(list, value);
      default: return at::_foreach_mul_(list, value);
    }
  });
}

// Divides by one number on the device.
int rh_foreach_div_tensor(RhTensors tensors, size_t count, const at::Tensor* value) {
  return rh_guard([&] {
    c10::AutoGradMode no_grad(false);
    at::_foreach_div_(rh_list(tensors, count), *value);
  });
}

int rh_foreach_list(int operation, RhTensors tensors, RhTensors others, size_t count, double factor) {
  return rh_guard([&] {
    c10::AutoGradMode no_grad(false);
    const auto list = rh_list(tensors, count), other = rh_list(others, count);
    switch (operation) {
      case 0: return at::_foreach_add_(list, other, factor);
      case 1: return at::_foreach_mul_(list, other);
      case 2: return at::_foreach_div_(list, other);
      case 3: return at::_foreach_lerp_(list, other, factor);
      default: return at::_foreach_copy_(list, other, /*non_blocking=*/true);
    }
  });
}
}
