// The vote at the end of a step, on the device. No call here waits for the device, except a
// collective over Gloo.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <memory>

#include "group.h"
#include "stream.h"
#include "tensors.h"

namespace {
constexpr int64_t kLowHalf = 0xffffffff;
} // namespace

extern "C" {

// Sums `values` (f64, one dimension) over the group. `sums` and `found_inf` (f32, one element) are
// on the device. After `event`, `host` holds: the sums; `aside` (f64, one dimension, or null); 1 if
// a sum is garbage, else 0; 1 if `equal` (i64, one dimension, or null) differs between the ranks,
// else 0; the flag.
//
// With each value v the ranks sum |v|, and for both a checksum k(1 - x), so that the sums of x and
// of its checksum show how many ranks they cover. |v| gives the scale of the rounding error,
// because values of mixed signs may cancel. Values that must be equal are sent as halves of 32
// bits, whose sums are exact. A rank that aborts sends NaN: its earlier collectives may be corrupt
// even if all later ones succeed.
int rh_agree(const RhGroup* group, const at::Tensor* values, const at::Tensor* finite, const at::Tensor* equal, const at::Tensor* aside,
    double factor, double world_size, double tolerance, at::Tensor** sums, at::Tensor** found_inf, at::Tensor** host, RhEvent** event) {
  return rh_guard([&] {
    c10::AutoGradMode no_grad(false);
    TORCH_CHECK(values->dim() == 1 && values->scalar_type() == at::kDouble, "the values must be a list of f64");
    TORCH_CHECK(!equal || (equal->dim() == 1 && equal->scalar_type() == at::kLong), "what must be equal must be a list of i64");
    TORCH_CHECK(!aside || (aside->dim() == 1 && aside->scalar_type() == at::kDouble), "what goes aside must be a list of f64");
    const auto device = values->device();
    // The rank's own trouble goes into the sum, so that all ranks decide the same.
    auto trouble = finite ? finite->isfinite().logical_not().any().to(at::kDouble).view({1}) : at::zeros({1}, values->options());
    if (group) trouble = trouble + group->aborted.to(device, /*non_blocking=*/true);
    auto same = at::zeros({0}, values->options());
    if (equal) same = at::cat({equal->bitwise_and(kLowHalf), equal->bitwise_right_shift(32).bitwise_and(kLowHalf)}).to(at::kDouble);
    auto own = at::cat({*values, same, trouble});
    own = at::cat({own, own.abs()});
    std::vector<at::Tensor> packed{at::cat({own, (1.0 - own).mul_(factor)})};
    if (group) {
      auto work = group->group->allreduce(packed, c10d::AllreduceOptions());
      if (work) work->wait(); // NCCL: the stream waits
    }
    const int64_t num_values = values->numel(), count = num_values + same.numel();
    const auto both = packed[0].narrow(0, 0, 2 * (count + 1)), checksum = packed[0].narrow(0, 2 * (count + 1), 2 * (count + 1));
    const auto magnitudes = both.narrow(0, count + 1, count + 1).clamp_min(world_size);
    const auto error = (both + checksum / factor - world_size).abs_();
    const auto right = both.isfinite().logical_and_(error.le(at::cat({magnitudes, magnitudes}).mul_(tolerance)));
    const auto is_right = right.all();
    const auto is_same = both.narrow(0, num_values, same.numel()).eq(same * world_size).all();
    const auto is_good = is_right.logical_and(is_same).logical_and(both[count].eq(0));
    std::vector<at::Tensor> parts{both.narrow(0, 0, num_values)};
    if (aside) parts.push_back(*aside);
    for (const auto& flag : {is_right, is_same, is_good}) parts.push_back(flag.logical_not().to(at::kDouble).view({1}));
    const auto result = at::cat(parts);
    auto copy = at::empty(result.sizes(), at::TensorOptions().dtype(at::kDouble).pinned_memory(!device.is_cpu()));
    copy.copy_(result, /*non_blocking=*/true);
    auto copied = std::unique_ptr<RhEvent>(RhEvent::record(device));
    *sums = new at::Tensor(result.narrow(0, 0, num_values));
    *found_inf = new at::Tensor(result.narrow(0, result.numel() - 1, 1).to(at::kFloat));
    *host = new at::Tensor(copy);
    *event = copied.release(); // last: if the event is set, the other outputs are set, too
  });
}
}
