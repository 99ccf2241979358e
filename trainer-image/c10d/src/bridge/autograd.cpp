// Gradients of tensors.
#include "guard.h"
#include "tensors.h"

extern "C" {

// Releases the gradients. Zeroing them in place would fail: they may be views of a Reducer's buckets, even of
// one that is gone.
int rh_zero_grad(RhTensors parameters, size_t count) {
  return rh_guard([&] {
    for (size_t i = 0; i < count; i++) parameters[i]->mutable_grad().reset();
  });
}

// Errors of the Reducer's collectives are thrown here, so it must not be tch's own call, which panics.
int rh_backward(const at::Tensor* loss) {
  return rh_guard([&] { loss->backward(); });
}
}
