// Operations on lists of tensors, each in a few kernels for the whole list.
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_maximum.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_neg.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>

#include "guard.h"
#include "tensors.h"

namespace {
at::Tensor total_norm(const std::vector<at::Tensor>& list) {
  std::vector<at::Tensor> norms = at::_foreach_norm(list, 2, at::kFloat);
  return at::linalg_vector_norm(at::stack(norms), 2);
}
} // namespace

extern "C" {

// `out`: room for as many handles as there are tensors.
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
    *out = new at::Tensor(total_norm(rh_list(tensors, count)));
  });
}

// As torch.nn.utils.clip_grad_norm_: the factor stays on the device.
int rh_clip_by_norm(RhTensors tensors, size_t count, double most, at::Tensor** out) {
  return rh_guard([&] {
    c10::AutoGradMode no_grad(false);
    const auto list = rh_list(tensors, count);
    const auto norm = total_norm(list);
    at::_foreach_mul_(list, norm.add(1e-6).reciprocal_().mul_(most).clamp_max_(1.0));
    *out = new at::Tensor(norm);
  });
}

int rh_foreach_unary(int operation, RhTensors tensors, size_t count) {
  return rh_guard([&] {
    c10::AutoGradMode no_grad(false);
    const auto list = rh_list(tensors, count);
    switch (operation) {
      case 0: return at::_foreach_sqrt_(list);
      case 1: return at::_foreach_neg_(list);
      default: return at::_foreach_zero_(list);
    }
  });
}

int rh_foreach_scalar(int operation, RhTensors tensors, size_t count, double value) {
  return rh_guard([&] {
    c10::AutoGradMode no_grad(false);
    const auto list = rh_list(tensors, count);
    switch (operation) {
      case 0: return at::_foreach_add_(list, value);
      case 1: return at::_foreach_mul_(list, value);
      default: return at::_foreach_div_(list, value);
    }
  });
}

// By one number that is on the device.
int rh_foreach_tensor(int operation, RhTensors tensors, size_t count, const at::Tensor* value) {
  return rh_guard([&] {
    c10::AutoGradMode no_grad(false);
    const auto list = rh_list(tensors, count);
    switch (operation) {
      case 0: return at::_foreach_add_(list, *value);
      case 1: return at::_foreach_mul_(list, *value);
      default: return at::_foreach_div_(list, *value);
    }
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
      case 3: return at::_foreach_maximum_(list, other);
      case 4: return at::_foreach_lerp_(list, other, factor);
      default: return at::_foreach_copy_(list, other, /*non_blocking=*/true);
    }
  });
}

int rh_foreach_pointwise(int operation, RhTensors tensors, RhTensors ones, RhTensors others, size_t count, double factor) {
  return rh_guard([&] {
    c10::AutoGradMode no_grad(false);
    const auto list = rh_list(tensors, count), one = rh_list(ones, count), other = rh_list(others, count);
    if (operation == 0) at::_foreach_addcmul_(list, one, other, factor);
    else at::_foreach_addcdiv_(list, one, other, factor);
  });
}
}
