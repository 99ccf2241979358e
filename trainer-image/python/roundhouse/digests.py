"""Digests of tensors, which change with each single bit: ranks compare them instead of the
bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from .optimizer import bytes_of

# The largest prime below 2**52: a double holds each remainder, and no bit of a sum is lost.
_PRIME = 4_503_599_627_370_449
# Number of bytes of small tensors that are copied together before they are summed. A GPU then
# starts fewer kernels. A CPU starts a sum faster than it copies 64 kB.
_PORTION, _PORTION_ON_CPU = 16 << 20, 64 << 10


def sum_of_words(row: torch.Tensor) -> torch.Tensor:
    """The sum of bytes as 64-bit words modulo 2**64: one integer, on the device."""
    whole = row.numel() // 8 * 8
    # A part of a larger tensor may start at any address.
    row = row if row.data_ptr() % 8 == 0 and row.storage_offset() % 8 == 0 else row.clone()
    # Words of 64 bits: for a sum of narrower words PyTorch would first copy each to 64 bits.
    words = row[:whole].view(torch.int64).sum()
    return words if whole == row.numel() else words + row[whole:].sum(dtype=torch.int64)


def digest_of(buffers: Iterable[torch.Tensor], device: torch.device) -> torch.Tensor | float:
    """One number below 2**52 for the bits of all buffers, on the device: the sum of their words. 0
    without buffers."""
    sums = [sum_of_words(bytes_of(buffer)).to(device) for buffer in buffers]
    if not sums:
        return 0.0
    return torch.stack(sums).sum().remainder(_PRIME).to(torch.float64)


def portions(tensors: Sequence[torch.Tensor]) -> Iterable[torch.Tensor]:
    """The bytes of many tensors; small tensors are joined."""
    small: dict[torch.device, list[torch.Tensor]] = {}
    num_bytes: dict[torch.device, int] = {}
    for tensor in tensors:
        row, device = bytes_of(tensor), tensor.device
        portion = _PORTION_ON_CPU if device.type == "cpu" else _PORTION
        if row.numel() >= portion:
            yield row
            continue
        small.setdefault(device, []).append(row)
        num_bytes[device] = num_bytes.get(device, 0) + row.numel()
        if num_bytes[device] >= portion:
            yield torch.cat(small.pop(device))
            num_bytes[device] = 0
    for rows in small.values():
        yield torch.cat(rows)
