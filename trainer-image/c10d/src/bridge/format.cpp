// Memory formats, which tch's own calls do not preserve.
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include "guard.h"
#include "tensors.h"

extern "C" {

int rh_contiguous(const at::Tensor* tensor, int format, at::Tensor** out) {
  return rh_guard([&] { *out = new at::Tensor(tensor->contiguous(static_cast<at::MemoryFormat>(format))); });
}

int rh_is_contiguous(const at::Tensor* tensor, int format, bool* out) {
  return rh_guard([&] { *out = tensor->is_contiguous(static_cast<at::MemoryFormat>(format)); });
}

int rh_empty_like(const at::Tensor* tensor, int format, at::Tensor** out) {
  return rh_guard([&] { *out = new at::Tensor(at::empty_like(*tensor, {}, static_cast<at::MemoryFormat>(format))); });
}

// Converts in place, so leaves stay leaves. Tensors with another number of dimensions do not
// change.
int rh_convert(RhTensors tensors, size_t count, int format) {
  return rh_guard([&] {
    c10::AutoGradMode no_grad(false);
    const auto wanted = static_cast<at::MemoryFormat>(format);
    const int64_t dimensions = wanted == at::MemoryFormat::ChannelsLast ? 4 : wanted == at::MemoryFormat::ChannelsLast3d ? 5 : -1;
    for (size_t i = 0; i < count; i++)
      if (dimensions < 0 || tensors[i]->dim() == dimensions) tensors[i]->set_data(tensors[i]->contiguous(wanted));
  });
}
}
