// Updates of all parameters in a few kernels, which a flag on the device can skip.
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <c10/core/GradMode.h>

#include "guard.h"
#include "tensors.h"

namespace {
// Whether two tensors of one shape have the same layout in memory. The stride along a dimension of
// size 1 does not matter: with channels last it differs between the weight of a 1x1 convolution and
// its gradient.
bool lie_alike(const at::Tensor& left, const at::Tensor& right) {
  for (int64_t dimension = 0; dimension < left.dim(); dimension++)
    if (left.size(dimension) > 1 && left.stride(dimension) != right.stride(dimension)) return false;
  return true;
}

// The kernels walk through memory, not through indices, and the CPU kernels do not check the
// layout. CUDA kernels compare strides, so this returns the other tensors with exactly the strides
// of the parameters, on the same memory.
std::vector<at::Tensor> same_layout(const std::vector<at::Tensor>& parameters, std::vector<at::Tensor> others, const char* what) {
  for (size_t i = 0; i < parameters.size(); i++) {
    const auto &parameter = parameters[i], &other = others[i];
    TORCH_CHECK(
        other.defined() && other.sizes() == parameter.sizes() && lie_alike(parameter, other) && other.device() == parameter.device(),
        "the ", what, " of parameter ", i, " has another shape, memory format or device than the parameter");
    if (other.strides() != parameter.strides()) others[i] = other.as_strided(parameter.sizes(), parameter.strides());
  }
  return others;
}

std::optional<at::Tensor> maybe(const at::Tensor* tensor) {
  return tensor ? std::make_optional(*tensor) : std::nullopt;
}
} // namespace

// As SgdUpdate in Rust.
struct RhSgd {
  double lr, momentum, weight_decay;
  bool nesterov;
};

// As AdamWUpdate in Rust.
struct RhAdamW {
  double lr, beta1, beta2, eps, weight_decay;
};

extern "C" {

// `momenta` is null without momentum.
int rh_fused_sgd(RhTensors parameters, RhTensors gradients, RhTensors momenta, size_t count, const RhSgd* sgd, const at::Tensor* scale, const at::Tensor* found_inf) {
  return rh_guard([&] {
    c10::AutoGradMode no_grad(false);
    const auto list = rh_list(parameters, count), grads = same_layout(list, rh_list(gradients, count), "gradient");
    const auto buffers = momenta ? same_layout(list, rh_list(momenta, count), "momentum") : std::vector<at::Tensor>{};
    at::_fused_sgd_(
        list, grads, buffers, sgd->weight_decay, sgd->momentum, sgd->lr, /*dampening=*/0.0, sgd->nesterov, /*maximize=*/false,
        /*is_first_step=*/false, maybe(scale), maybe(found_inf));
  });
}

// `step` is the number of applied updates: one number on the device for all parameters.
int rh_fused_adamw(RhTensors parameters, RhTensors gradients, RhTensors means, RhTensors squares, size_t count, at::Tensor* step, const RhAdamW* adamw, const at::Tensor* scale, const at::Tensor* found_inf) {
  return rh_guard([&] {
    c10::AutoGradMode no_grad(false);
    const auto list = rh_list(parameters, count), grads = same_layout(list, rh_list(gradients, count), "gradient");
    const auto first = same_layout(list, rh_list(means, count), "first moment");
    const auto second = same_layout(list, rh_list(squares, count), "second moment");
    step->add_(1);
    if (found_inf) step->sub_(found_inf->view(step->sizes()));
    at::_fused_adamw_(
        list, grads, first, second, {}, std::vector<at::Tensor>(count, *step), adamw->lr, adamw->beta1, adamw->beta2,
        adamw->weight_decay, adamw->eps, /*amsgrad=*/false, /*maximize=*/false, maybe(scale), maybe(found_inf));
  });
}
}
