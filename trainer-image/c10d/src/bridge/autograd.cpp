// Gradients of tensors.
#include "guard.h"
#include "tensors.h"

extern "C" {

// Releases the gradients. Zeroing them in place would fail, because they may be views of the
// buckets of a Reducer, even of a freed one.
int rh_zero_grad(RhTensors parameters, size_t count) {
  return rh_guard([&] {
    for (size_t i = 0; i < count; i++) parameters[i]->mutable_grad().reset();
  });
}

// Each gradient has the shape of its tensor.
int rh_set_grad(RhTensors tensors, RhTensors gradients, size_t count) {
  return rh_guard([&] {
    for (size_t i = 0; i < count; i++) tensors[i]->mutable_grad() = *gradients[i];
  });
}

// The Reducer's collectives throw their errors here, so tch's own call, which panics, cannot be
// used.
int rh_backward(const at::Tensor* loss) {
  return rh_guard([&] { loss->backward(); });
}
}
