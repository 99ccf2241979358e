"""Parts of tensors: which bytes of a sharded tensor this process has."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from .errors import StateError

# First byte in the whole tensor, bytes of each run, number of runs, distance of their starts.
Runs = tuple[int, int, int, int]


class Part(NamedTuple):
    """The part of a tensor that this process has.

    ``shape`` and ``num_bytes`` are those of the whole tensor. ``runs`` are in the order of the
    local tensor.
    """

    shape: list[int]
    num_bytes: int
    runs: list[Runs]


def is_sharded(tensor: Any) -> bool:
    """Whether a tensor is a DTensor."""
    # Importing DTensor takes time, and a script that has one has imported it. PyTorch 2.4 has it in
    # the private module only.
    modules = (sys.modules.get(name) for name in ("torch.distributed.tensor", "torch.distributed._tensor"))
    kinds = tuple(module.DTensor for module in modules if module is not None and hasattr(module, "DTensor"))
    return isinstance(tensor, kinds)


def local(tensor: Any) -> torch.Tensor:
    """This process' part of a tensor, which shares its memory."""
    part: torch.Tensor = tensor._local_tensor if is_sharded(tensor) else tensor
    return part


def local_gradients(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The parts of the gradients that this process has. They share the memory of the gradients."""
    return [local(parameter.grad) for parameter in parameters if parameter.grad is not None]


def part_of(name: str, tensor: Any) -> Part:
    """The part of a tensor that this process has."""
    size = tensor.element_size()
    if not is_sharded(tensor):
        num_bytes = tensor.numel() * size
        return Part(list(tensor.shape), num_bytes, _one(num_bytes))
    placements = tensor.placements
    if any(placement.is_partial() for placement in placements):
        raise StateError(f"{name} of rh.join(state=...) is a DTensor of sums that are not complete; call redistribute() before rh.join")
    shape, offset = _local_block(tensor)
    whole = list(tensor.shape)
    if list(local(tensor).shape) != list(shape):
        raise StateError(
            f"{name} of rh.join(state=...) is a DTensor whose part has the shape {list(local(tensor).shape)}, not {list(shape)}: make it by "
            "fully_shard, parallelize_module or distribute_tensor"
        )
    return Part(whole, math.prod(whole) * size, runs_of(whole, list(shape), list(offset), size))


def block_of(whole: torch.Tensor, tensor: Any) -> torch.Tensor:
    """The block of a whole tensor that this process has of the sharded ``tensor``."""
    shape, offset = _local_block(tensor)
    return whole[tuple(slice(start, start + size) for start, size in zip(offset, shape))]


def _local_block(tensor: Any) -> tuple[Sequence[int], Sequence[int]]:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return shape, offset


def _one(num_bytes: int) -> list[Runs]:
    return [(0, num_bytes, 1, num_bytes)] if num_bytes else []


def runs_of(whole: Sequence[int], block: Sequence[int], offset: Sequence[int], size: int) -> list[Runs]:
    """The runs of bytes of a block of a tensor, whose elements have ``size`` bytes."""
    if 0 in block or 0 in whole:
        return []
    cut = [dim for dim in range(len(whole)) if block[dim] != whole[dim]]
    if not cut:
        return _one(math.prod(whole) * size)
    # Bytes from an index of a dimension to the next.
    strides = [math.prod(whole[dim + 1 :]) * size for dim in range(len(whole))]
    last = cut[-1]
    length = block[last] * strides[last]
    start = offset[last] * strides[last]
    if last == 0:
        return [(start, length, 1, length)]
    # The dimensions before the last cut one up to the cut one before it are one row of runs.
    first = cut[-2] if len(cut) > 1 else 0
    count = math.prod(block[first:last])
    start += sum(offset[dim] * strides[dim] for dim in range(first, last))
    outer = [range(offset[dim], offset[dim] + block[dim]) for dim in range(first)]
    starts = (start + sum(index * stride for index, stride in zip(at, strides)) for at in itertools.product(*outer))
    return [(at, length, count, strides[last - 1]) for at in starts]
