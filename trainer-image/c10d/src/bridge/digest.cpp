// Digests, which show whether ranks hold the same bits.
#include "digest.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "guard.h"
#include "tensors.h"

namespace {
// Sums words of 64 bits, and separately an element at either end that belongs to no word. PyTorch
// would convert each element of a sum of 32-bit words, which is 50 times slower on a CPU.
void add_sums(const at::Tensor& flat, std::vector<at::Tensor>& sums) {
  const bool is_half = flat.element_size() == 4;
  TORCH_CHECK(is_half || flat.element_size() == 8, "a digest of elements of ", flat.element_size(), " bytes");
  const int64_t first = is_half ? flat.storage_offset() % 2 : 0;
  const int64_t count = flat.numel() - first, whole = is_half ? count / 2 * 2 : count;
  if (first > 0) sums.push_back(flat.narrow(0, 0, 1).view(at::kInt).sum(at::kLong));
  if (whole > 0) sums.push_back(flat.narrow(0, first, whole).view(at::kLong).sum());
  if (whole < count) sums.push_back(flat.narrow(0, first + whole, 1).view(at::kInt).sum(at::kLong));
}
} // namespace

at::Tensor rh_digest(const std::vector<at::Tensor>& tensors) {
  c10::AutoGradMode no_grad(false);
  std::vector<at::Tensor> sums;
  for (const auto& tensor : tensors)
    if (tensor.numel() > 0) add_sums(tensor.detach().contiguous().view({-1}), sums);
  if (sums.empty()) return at::zeros({}, at::TensorOptions().dtype(at::kLong).device(tensors.empty() ? at::kCPU : tensors[0].device()));
  return at::stack(sums).sum();
}

extern "C" {

int rh_digest_of(RhTensors tensors, size_t count, at::Tensor** out) {
  return rh_guard([&] { *out = new at::Tensor(rh_digest(rh_list(tensors, count))); });
}
}
