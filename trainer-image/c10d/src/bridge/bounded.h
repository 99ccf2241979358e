#pragma once
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "group.h"

// Wraps Gloo so that each collective ends at the latest when the backend is aborted.
c10::intrusive_ptr<c10d::Backend> rh_bounded(c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo);
