// Weights that are sharded over the processes of a group (ZeRO stages 2 and 3; Rajbhandari et al.
// 2020).
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

struct RhUnit;

// The units of a model and their group. All processes of the group must use the same units in the
// same order, so one thread uses them at a time.
struct RhUnits {
  RhUnits(c10::intrusive_ptr<c10d::ProcessGroup> group, bool keeps_whole, bool sums)
      : group(std::move(group)), keeps_whole(keeps_whole), sums(sums) {}
  ~RhUnits();

  void begin_pass();
  void end_pass();
  // Drops everything of passes that have not ended.
  void abandon();
  // The numbers of rows that all processes send to their experts in a use. The first use of a pass
  // finds them: it is a collective that the host waits for. `own`: the number of this process.
  const std::vector<int64_t>& rows_of_all(int64_t own, at::Device device);

  // Runs a part of a collective, and keeps its error.
  template <class Part>
  void collective(Part part) {
    try {
      part();
    } catch (const std::exception& error) {
      if (failure.empty()) failure = error.what();
      throw;
    }
  }
  // Waits for a collective, and counts the time. NCCL: only the current stream waits.
  void wait(const c10::intrusive_ptr<c10d::Work>& work);
  int64_t num_processes() const {
    return group->getSize();
  }

  // Nodes of the graph hold it while they run, and may contain each other.
  std::recursive_mutex mutex;
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
  // See rows_of_all(). Empty before the first use of the pass.
  std::vector<int64_t> rows;
};

// The weights of a segment as one vector, which is cut into equal parts. Or the experts of this
// process, of which the others have none: then the vector is `shard`, and it is never gathered.
struct RhUnit {
  std::vector<at::Tensor> views(const at::Tensor& vector) const;

  void begin_all_gather();
  // The whole vector.
  at::Tensor finish_all_gather();
  // Sends each process the gradient of its part.
  void begin_reduce(at::Tensor gradient);
  void finish_reduce();
  // Adds gradients of the own part: a row for each process, or one for their sum.
  void add_gradients(at::Tensor rows);
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

// Units that this thread uses.
class RhUnitsInUse {
 public:
  explicit RhUnitsInUse(const RhSharding* sharding) : units_(sharding->units), lock_(units_->mutex) {}
  RhUnits* operator->() const {
    return units_.get();
  }

 private:
  const std::shared_ptr<RhUnits> units_;
  const std::lock_guard<std::recursive_mutex> lock_;
};
