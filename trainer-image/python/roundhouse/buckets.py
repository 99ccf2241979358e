"""Divides tensors into buckets, each of which is exchanged at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

# Bytes of a bucket. A tensor that is larger has one of its own.
_BYTES = 64 << 20


def buckets(tensors: Sequence[torch.Tensor], kinds: Sequence[Any] | None = None) -> Iterator[list[int]]:
    """Indices of tensors of one kind, type and device, in their order, that together have a limited
    size. ``kinds``: the kind of each tensor."""
    open_: dict[Any, list[int]] = {}
    sizes: dict[Any, int] = {}
    for index, tensor in enumerate(tensors):
        key = None if kinds is None else kinds[index], tensor.dtype, tensor.device
        own = tensor.numel() * tensor.element_size()
        if key in open_ and sizes[key] + own > _BYTES:
            yield open_.pop(key)
            sizes[key] = 0
        open_.setdefault(key, []).append(index)
        sizes[key] = sizes.get(key, 0) + own
    yield from open_.values()
