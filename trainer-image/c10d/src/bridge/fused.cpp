// Updates of all parameters in a few kernels, which a flag on the device can hold back.
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <c10/core/GradMode.h>

#include "guard.h"
#include "tensors.h"

namespace {
// The kernels walk through memory, not through indices, and do not check that.
void same_layout(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& others, const char* what) {
  for (size_t i = 0; i < parameters.size(); i++)
    TORCH_CHECK(
        others[i].defined() && others[i].sizes() == parameters[i].sizes() && others[i].strides() == parameters[i].strides() &&
            others[i].device() == parameters[i].device(),
        "the ", what, " of parameter ", i, " has another shape, memory format or device than the parameter");
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

// `momenta`: null without momentum.
int rh_fused_sgd(RhTensors parameters, RhTensors gradients, RhTensors momenta, size_t count, const RhSgd* sgd, const at::Tensor* scale, const at::Tensor* found_inf) {
  return rh_guard([&] {
    c10::AutoGradMode no_grad(false);
    const auto list = rh_list(parameters, count), grads = rh_list(gradients, count);
    const auto buffers = momenta ? rh_list(momenta, count) : std::vector<at::Tensor>{};
    same_layout(list, grads, "gradient");
    if (momenta) same_layout(list, buffers, "momentum");
    at::_fused_sgd_(
        list, grads, buffers, sgd->weight_decay, sgd->momentum, sgd->lr, /*dampening=*/0.0, sgd->nesterov, /*maximize=*/false,
        /*is_first_step=*/false, maybe(scale), maybe(found_inf));
  });
}

// `step` counts the updates that were made: one number on the device, for all parameters.
int rh_fused_adamw(RhTensors parameters, RhTensors gradients, RhTensors means, RhTensors squares, size_t count, at::Tensor* step, const RhAdamW* adamw, const at::Tensor* scale, const at::Tensor* found_inf) {
  return rh_guard([&] {
    c10::AutoGradMode no_grad(false);
    const auto list = rh_list(parameters, count), grads = rh_list(gradients, count);
    const auto first = rh_list(means, count), second = rh_list(squares, count);
    same_layout(list, grads, "gradient");
    same_layout(list, first, "first moment");
    same_layout(list, second, "second moment");
    step->add_(1);
    if (found_inf) step->sub_(found_inf->view(step->sizes()));
    at::_fused_adamw_(
        list, grads, first, second, {}, std::vector<at::Tensor>(count, *step), adamw->lr, adamw->beta1, adamw->beta2,
        adamw->weight_decay, adamw->eps, /*amsgrad=*/false, /*maximize=*/false, maybe(scale), maybe(found_inf));
  });
}
}
