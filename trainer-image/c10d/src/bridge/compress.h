#pragma once
#include <torch/csrc/distributed/c10d/comm.hpp>

// Like c10d's FP16CompressCommHook, but for any type: gradients are sent rounded, and are divided
// before the sum.
class CompressHook : public c10d::CppCommHookInterface<c10::intrusive_ptr<c10d::ProcessGroup>> {
 public:
  CompressHook(const c10::intrusive_ptr<c10d::ProcessGroup>& group, at::ScalarType type)
      : CppCommHookInterface(group), type_(type) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    std::vector<at::Tensor> small{bucket.getBufferRef().to(type_)};
    small[0].div_(state_->getSize());
    auto sum = state_->allreduce(small)->getFuture();
    auto buffer = bucket.getBufferRef();
    return sum->then(
        [buffer](c10::ivalue::Future& done) {
          buffer.copy_(done.value().toTensorVector()[0]);
          return c10::IValue(buffer);
        },
        sum->elementType());
  }

 private:
  const at::ScalarType type_;
};
