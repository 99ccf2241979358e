"""Rows of bytes that the ranks exchange. Each row is known to one rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

# Limit for all rows together. Each MiB takes each rank about 0.1 s of CPU time.
MOST_BYTES = 64 << 20
# Bytes per sum. Each number holds six of them, so it is an integer below 2^48, which a sum with
# zeros keeps exact.
CHUNK_BYTES = 3 << 20
_IN_NUMBER = 6


def shared_rows(
    rows: Sequence[torch.Tensor | None], summed: Callable[[Sequence[float]], list[float]], *, fits: bool = True
) -> list[torch.Tensor | None] | None:
    """Returns the rows of all ranks. Each rank passes None for rows that it does not know.

    Returns None if the rows are too large, or if ``fits`` is False on any rank. ``summed`` sums
    numbers over the ranks.
    """
    own = [0 if row is None else len(row) for row in rows]
    *sums, num_unfit = summed([*map(float, own), float(not fits)])
    lengths = list(map(int, sums))
    if num_unfit or sum(lengths) > MOST_BYTES:
        return None
    whole = torch.zeros(sum(lengths), dtype=torch.uint8)
    found = torch.split_with_sizes(whole, lengths)
    for row, known in zip(found, rows):
        # Processes of a replica with the same samples may have rows of other lengths. Only one of
        # them counts in the sum.
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
