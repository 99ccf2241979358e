// Collectives of a process group.
#include <c10/core/GradMode.h>

#include <torch/csrc/distributed/c10d/comm.hpp>

#include "group.h"
#include "tensors.h"

namespace {
constexpr size_t kBroadcastBufferBytes = size_t{250} << 20; // as torch's DistributedDataParallel

// Waits for a collective; the error of a peer that is gone is thrown here. NCCL: only the current stream waits.
void finish(const c10::intrusive_ptr<c10d::Work>& work) {
  if (work) work->wait();
}
} // namespace

extern "C" {

int rh_group_all_reduce(const RhGroup* group, at::Tensor* tensor, int operation) {
  return rh_guard([&] {
    c10::AutoGradMode no_grad(false);
    constexpr c10d::ReduceOp::RedOpType kOperations[] = {c10d::ReduceOp::SUM, c10d::ReduceOp::MIN, c10d::ReduceOp::MAX};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp(kOperations[operation]);
    std::vector<at::Tensor> tensors{*tensor};
    finish(group->group->allreduce(tensors, options));
  });
}

int rh_group_broadcast(const RhGroup* group, at::Tensor* tensor, int root) {
  return rh_guard([&] {
    c10::AutoGradMode no_grad(false);
    c10d::BroadcastOptions options;
    options.rootRank = root;
    std::vector<at::Tensor> tensors{*tensor};
    finish(group->group->broadcast(tensors, options));
  });
}

int rh_group_broadcast_coalesced(const RhGroup* group, at::Tensor* const* tensors, size_t count, int root) {
  return rh_guard([&] {
    c10::AutoGradMode no_grad(false); // it writes into leaves that require gradients
    c10d::broadcast_coalesced(group->group, rh_list(tensors, count), kBroadcastBufferBytes, root);
  });
}

int rh_group_barrier(const RhGroup* group) {
  return rh_guard([&] { finish(group->group->barrier()); });
}

}
