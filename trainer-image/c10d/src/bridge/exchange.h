// Exchanges between all ranks of a group.
#pragma once
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <vector>

// Whether the group's library sends and receives in one launch (NCCL).
bool rh_exchanges_in_one_launch(c10d::ProcessGroup& group);

// Starts to send the r-th of the group's equal parts of `go` to rank r, and to receive the part of
// rank r in the r-th part of `come`.
c10::intrusive_ptr<c10d::Work> rh_begin_exchange(c10d::ProcessGroup& group, at::Tensor& come, at::Tensor& go);

// The same with parts of these numbers of rows.
c10::intrusive_ptr<c10d::Work> rh_begin_exchange_of_rows(
    c10d::ProcessGroup& group, at::Tensor& come, at::Tensor& go, std::vector<int64_t> come_rows, std::vector<int64_t> go_rows);
