"""Rows of bytes that the ranks exchange. Each row is known to one rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

# The most bytes of all rows, which take each rank about 0.1 s of a CPU per MiB.
MOST_BYTES = 64 << 20
# A sum has so many bytes. Each of its numbers has six of them, so that it is a whole number that a
# sum with zeros keeps.
CHUNK_BYTES = 3 << 20
_IN_NUMBER = 6


def shared_rows(
    rows: Sequence[torch.Tensor | None], summed: Callable[[Sequence[float]], list[float]], *, fits: bool = True
) -> list[torch.Tensor | None] | None:
    """The rows of all ranks, each of which gives None for the rows that it does not know. None if
    they are too large, or not ``fits`` on some rank. ``summed`` sums numbers over the ranks."""
    own = [0 if row is None else len(row) for row in rows]
    *sums, num_unfit = summed([*map(float, own), float(not fits)])
    lengths = list(map(int, sums))
    if num_unfit or sum(lengths) > MOST_BYTES:
        return None
    whole = torch.zeros(sum(lengths), dtype=torch.uint8)
    found = torch.split_with_sizes(whole, lengths)
    for row, known in zip(found, rows):
        # Of the processes of a replica with the same samples one counts, and others may have other
        # lengths.
        if known is not None and len(known) == len(row):
            row.copy_(known)
    for begin in range(0, len(whole), CHUNK_BYTES):
        chunk = whole[begin : begin + CHUNK_BYTES]
        chunk.copy_(_of_numbers(summed(numbers_of(chunk)))[: len(chunk)])
    return [row if len(row) else None for row in found]


def numbers_of(row: torch.Tensor) -> list[float]:
    """A row of bytes as whole numbers below 2^48."""
    padded = torch.nn.functional.pad(row, (0, -len(row) % _IN_NUMBER)).view(-1, _IN_NUMBER)
    wide = torch.nn.functional.pad(padded, (0, 8 - _IN_NUMBER)).view(torch.int64)
    numbers: list[float] = wide.flatten().double().tolist()
    return numbers


def _of_numbers(numbers: list[float]) -> torch.Tensor:
    wide = torch.tensor(numbers, dtype=torch.float64).long().view(-1, 1).view(torch.uint8)
    return wide[:, :_IN_NUMBER].reshape(-1)
