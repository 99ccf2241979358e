// Weights that are sharded over the processes of a group (ZeRO stages 2 and 3; Rajbhandari et al.
// 2020).
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <string>
#include <vector>

struct RhUnit;

// The units of a model and their group. All processes of the group must use the same units in the
// same order, so one thread uses them, and there is no lock.
struct RhUnits {
  RhUnits(c10::intrusive_ptr<c10d::ProcessGroup> group, bool keeps_whole, bool sums)
      : group(std::move(group)), keeps_whole(keeps_whole), sums(sums) {}
  ~RhUnits();

  void begin_pass();
  void end_pass();
  // Drops everything of passes that have not ended.
  void abandon();

  const c10::intrusive_ptr<c10d::ProcessGroup> group;
  // Whether the whole vectors stay (stage 2). Then only gradients are sharded.
  const bool keeps_whole;
  // Whether the gradients of all processes are summed when they arrive.
  const bool sums;
  // The first error of a collective. It distinguishes an error of the group from one of a segment.
  std::string failure;
  std::vector<std::unique_ptr<RhUnit>> all;
  // The uses of this pass so far, and those of the last pass. The latter only decide what is
  // gathered ahead.
  std::vector<RhUnit*> uses, last_uses;
  // The unit whose gradient is being exchanged. There is at most one, which bounds the memory.
  RhUnit* reducing = nullptr;
};

// The weights of a segment as one vector, which is cut into equal parts.
struct RhUnit {
  int64_t num_processes() const;
  std::vector<at::Tensor> views(const at::Tensor& vector) const;

  void begin_all_gather();
  // The whole vector.
  at::Tensor finish_all_gather();
  // Sends each process the gradient of its part.
  void begin_reduce(at::Tensor gradient);
  void finish_reduce();
  void end_pass();
  void abandon();

  RhUnits* units;
  std::vector<std::vector<int64_t>> shapes;
  std::vector<int64_t> starts;
  // The part of this process, a leaf. With `keeps_whole` it shares the memory of `whole`.
  at::Tensor shard;
  at::Tensor whole;
  // A gather that has begun.
  at::Tensor gathered;
  std::vector<c10::intrusive_ptr<c10d::Work>> gathering;
  // The gradient that is sent, and those of the own part that are received: a row per process.
  at::Tensor sent, received;
  c10::intrusive_ptr<c10d::Work> exchange;
  // Received rows, or their sum: of this pass, and of the passes before.
  at::Tensor pass_gradients, gradients;
};

// Frees the memory of a tensor although other handles of it remain, for example in the thread of a
// completed collective. Such a handle must not be read. The version stays, because the content does
// not change for the graph.
void rh_drop_memory(const at::Tensor& tensor);

// Nodes of the graph share the units, so they may outlive the handle.
struct RhSharding {
  std::shared_ptr<RhUnits> units;
};
