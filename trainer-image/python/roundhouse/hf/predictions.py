"""The predictions for an evaluation set, which the ranks compute together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .outcomes import packed, unpacked

# The most bytes of all predictions that the ranks exchange, which takes each rank about 0.1 s of a
# CPU per MiB.
MOST_BYTES = 64 << 20
# A sum has so many bytes. Each of its numbers has six of them, so that it is a whole number that a
# sum with zeros keeps.
CHUNK_BYTES = 3 << 20
_IN_NUMBER = 6


class Predictions:
    """What ``Trainer.prediction_step`` has returned for batches of an evaluation set.

    All ranks then read the same bytes, whichever rank has computed them.
    """

    def __init__(self, num_batches: int):
        # A row of bytes of each batch; None if it is not known.
        self._rows: list[torch.Tensor | None] = [None] * num_batches
        self._num_bytes = 0
        # Whether this rank's part can be exchanged so far.
        self.fits = True
        # Whether all ranks that share them know the same ones.
        self.is_shared = False

    def add(self, index: int, outcome: Any) -> None:
        """Adds a batch that this rank has computed. An outcome that cannot be exchanged stays
        unknown."""
        try:
            row = packed(outcome)
        except TypeError:
            self.fits = False
            return
        self._rows[index] = row
        self._num_bytes += len(row)
        self.fits = self.fits and self._num_bytes <= MOST_BYTES

    def missing(self) -> list[int]:
        """The batches that are not known."""
        return [index for index, row in enumerate(self._rows) if row is None]

    def take(self, index: int) -> Any:
        """The outcome of a known batch, which is then forgotten."""
        row, self._rows[index] = self._rows[index], None
        assert row is not None
        return unpacked(row)

    def forget(self) -> None:
        """Forgets all batches."""
        self._rows = [None] * len(self._rows)

    def share(self, summed: Callable[[Sequence[float]], list[float]]) -> None:
        """Exchanges the predictions with the other ranks, unless they are too large. ``summed``
        sums numbers over the ranks."""
        own = [0 if row is None else len(row) for row in self._rows]
        *sums, num_unfit = summed([*map(float, own), float(not self.fits)])
        lengths = list(map(int, sums))
        if num_unfit or sum(lengths) > MOST_BYTES:
            return
        whole = torch.zeros(sum(lengths), dtype=torch.uint8)
        rows = torch.split_with_sizes(whole, lengths)
        for row, known in zip(rows, self._rows):
            # Of the processes of a replica with the same samples one counts, and others may have
            # other lengths.
            if known is not None and len(known) == len(row):
                row.copy_(known)
        for begin in range(0, len(whole), CHUNK_BYTES):
            chunk = whole[begin : begin + CHUNK_BYTES]
            chunk.copy_(_of_numbers(summed(_numbers(chunk)))[: len(chunk)])
        self._rows = [row if len(row) else None for row in rows]
        self.is_shared = True


def _numbers(row: torch.Tensor) -> list[float]:
    """A row of bytes as whole numbers below 2^48."""
    padded = torch.nn.functional.pad(row, (0, -len(row) % _IN_NUMBER)).view(-1, _IN_NUMBER)
    wide = torch.nn.functional.pad(padded, (0, 8 - _IN_NUMBER)).view(torch.int64)
    numbers: list[float] = wide.flatten().double().tolist()
    return numbers


def _of_numbers(numbers: list[float]) -> torch.Tensor:
    wide = torch.tensor(numbers, dtype=torch.float64).long().view(-1, 1).view(torch.uint8)
    return wide[:, :_IN_NUMBER].reshape(-1)
