"""The predictions for an evaluation set, which the ranks compute together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..integration import rows
from .outcomes import packed, unpacked


class Predictions:
    """What ``Trainer.prediction_step`` has returned for batches of an evaluation set."""

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
        self.fits = self.fits and self._num_bytes <= rows.MOST_BYTES

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
        """Exchanges the predictions with the other ranks, unless they are too large. If
        ``is_shared``, all ranks then read the same bytes, whichever rank has computed them.
        ``summed`` sums numbers over the ranks."""
        found = rows.shared_rows(self._rows, summed, fits=self.fits)
        if found is not None:
            self._rows, self.is_shared = found, True
