// Collectives of a process group.
#include <c10/core/GradMode.h>

#include <memory>

#include <torch/csrc/distributed/c10d/comm.hpp>

#include "exchange.h"
#include "group.h"
#include "tensors.h"

namespace {
constexpr size_t kBroadcastBufferBytes = size_t{250} << 20; // as torch's DistributedDataParallel

// Waits for a collective; throws if a peer is lost. NCCL: only the current stream waits.
void finish(const c10::intrusive_ptr<c10d::Work>& work) {
  if (work) work->wait();
}

// Starts to exchange tensors between all ranks in one launch. The all_to_all of PyTorch 2.11 is not
// used, because it reads the communicator's error without the lock that the watchdog holds.
c10::intrusive_ptr<c10d::Work> exchange(c10d::ProcessGroup& group, const std::vector<at::Tensor>& come, const std::vector<at::Tensor>& go) {
  const auto device = go.at(0).device().type();
  const int rank = group.getRank();
  come[rank].copy_(go[rank], /*non_blocking=*/true);
  group.startCoalescing(device);
  try {
    for (int peer = 0; peer < group.getSize(); peer++) {
      if (peer == rank) continue;
      std::vector<at::Tensor> out{go[peer]}, in{come[peer]};
      if (out[0].numel() > 0) group.send(out, peer, 0);
      if (in[0].numel() > 0) group.recv(in, peer, 0);
    }
  } catch (...) {
    try {
      group.endCoalescing(device);
    } catch (const std::exception&) {
      // Keep the first error, which explains the failure.
    }
    throw;
  }
  return group.endCoalescing(device);
}
} // namespace

bool rh_exchanges_in_one_launch(c10d::ProcessGroup& group) {
  return group.getDefaultBackend()->supportsCoalescing();
}

c10::intrusive_ptr<c10d::Work> rh_begin_exchange(c10d::ProcessGroup& group, at::Tensor& come, at::Tensor& go) {
  if (rh_exchanges_in_one_launch(group)) return exchange(group, come.chunk(group.getSize()), go.chunk(group.getSize()));
  std::vector<int64_t> even;
  return group.alltoall_base(come, go, even, even);
}

c10::intrusive_ptr<c10d::Work> rh_begin_exchange_of_rows(
    c10d::ProcessGroup& group, at::Tensor& come, at::Tensor& go, std::vector<int64_t> come_rows, std::vector<int64_t> go_rows) {
  if (rh_exchanges_in_one_launch(group)) return exchange(group, come.split_with_sizes(come_rows), go.split_with_sizes(go_rows));
  return group.alltoall_base(come, go, come_rows, go_rows);
}

struct RhExchange {
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
};

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

// Broadcasts tensor i from rank i. Starts all broadcasts before it waits for the first. After an
// error others may still run, until the group is aborted.
int rh_group_broadcast_each(const RhGroup* group, at::Tensor* const* tensors, size_t count) {
  return rh_guard([&] {
    c10::AutoGradMode no_grad(false);
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (size_t rank = 0; rank < count; rank++) {
      if (tensors[rank]->numel() == 0) continue;
      c10d::BroadcastOptions options;
      options.rootRank = static_cast<int64_t>(rank);
      std::vector<at::Tensor> tensor{*tensors[rank]};
      works.push_back(group->group->broadcast(tensor, options));
    }
    for (const auto& work : works) finish(work);
  });
}

int rh_group_broadcast_coalesced(const RhGroup* group, at::Tensor* const* tensors, size_t count, int root) {
  return rh_guard([&] {
    c10::AutoGradMode no_grad(false); // the broadcast writes to leaves that require gradients
    c10d::broadcast_coalesced(group->group, rh_list(tensors, count), kBroadcastBufferBytes, root);
  });
}

int rh_group_barrier(const RhGroup* group) {
  return rh_guard([&] { finish(group->group->barrier()); });
}

// Concatenates the tensors of all ranks.
int rh_group_all_gather(const RhGroup* group, at::Tensor* output, at::Tensor* input) {
  return rh_guard([&] {
    c10::AutoGradMode no_grad(false);
    std::vector<at::Tensor> inputs{*input};
    std::vector<std::vector<at::Tensor>> outputs{output->view({-1}).chunk(group->group->getSize())};
    for (auto& part : outputs[0]) part = part.view(input->sizes());
    finish(group->group->allgather(outputs, inputs));
  });
}

int rh_group_reduce_scatter(const RhGroup* group, at::Tensor* output, at::Tensor* input) {
  return rh_guard([&] {
    c10::AutoGradMode no_grad(false);
    finish(group->group->_reduce_scatter_base(*output, *input));
  });
}

// `go` and `come` are row counts per rank: rows of `input` to send, and rows of `output` to
// receive.
int rh_group_all_to_all(const RhGroup* group, at::Tensor* output, at::Tensor* input, const int64_t* come, const int64_t* go) {
  return rh_guard([&] {
    c10::AutoGradMode no_grad(false);
    const auto size = group->group->getSize();
    finish(rh_begin_exchange_of_rows(*group->group, *output, *input, {come, come + size}, {go, go + size}));
  });
}

// Starts to send to one rank and to receive from another; either tensor may be null. Both transfers
// run at the same time. Over NCCL they are one group of operations on the group's communicator,
// because two separate operations would wait for each other.
int rh_group_exchange(const RhGroup* group, const at::Tensor* sent, int to, at::Tensor* received, int from, RhExchange** out) {
  return rh_guard([&] {
    c10::AutoGradMode no_grad(false);
    auto exchange = std::make_unique<RhExchange>();
    const auto backend = group->group->getDefaultBackend();
    const auto begin = [&] {
      std::vector<at::Tensor> input, output;
      if (received) exchange->works.push_back(backend->recv(output = {*received}, from, 0));
      if (sent) exchange->works.push_back(backend->send(input = {*sent}, to, 0));
    };
    if (backend->supportsCoalescing()) {
      backend->startCoalescing();
      try {
        begin();
      } catch (...) {
        try {
          backend->endCoalescing();
        } catch (const std::exception&) {
          // Keep the first error, which explains the failure.
        }
        throw;
      }
      exchange->works = {backend->endCoalescing()};
    } else {
      begin();
    }
    *out = exchange.release();
  });
}

// Waits for the exchange, as for a collective.
int rh_exchange_wait(RhExchange* exchange) {
  return rh_guard([&] {
    for (const auto& work : exchange->works) finish(work);
  });
}

int rh_exchange_free(RhExchange* exchange) {
  return rh_guard([&] { delete exchange; });
}

int rh_group_send(const RhGroup* group, at::Tensor* tensor, int peer) {
  return rh_guard([&] {
    std::vector<at::Tensor> tensors{*tensor};
    finish(group->group->send(tensors, peer, 0));
  });
}

int rh_group_receive(const RhGroup* group, at::Tensor* tensor, int peer) {
  return rh_guard([&] {
    c10::AutoGradMode no_grad(false);
    std::vector<at::Tensor> tensors{*tensor};
    finish(group->group->recv(tensors, peer, 0));
  });
}
}
