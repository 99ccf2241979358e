"""Passes that measure a loss, of processes that share one copy of the model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from ..replica import Replica


class Lockstep:
    """The loss of a pass, as ``loss_of(inputs, number, seed=0)`` computes it.

    The processes of a replica wait for each other in each pass of a sharded model. How many passes
    a measurement needs depends on the samples, so a process that needs fewer makes others that do
    not count. Without a ``replica`` nothing waits.
    """

    def __init__(self, loss_of: Callable[..., float], replica: Replica | None):
        self._loss_of, self._replica = loss_of, replica

    def __call__(self, inputs: Any, number: Any, seed: int = 0) -> float:
        self.any(True)
        return self._loss_of(inputs, number, seed)

    @contextlib.contextmanager
    def together(self, inputs: Any) -> Iterator[None]:
        """All processes of the replica enter this context with any pass. It ends when none of them
        measures any more."""
        yield
        while self._replica is not None and self.any(False):
            with contextlib.suppress(Exception):  # The model may have no loss in eval mode.
                self._loss_of(inputs, None)

    def any(self, holds: bool) -> bool:
        """Whether something holds in this process or in another one of the replica."""
        return holds if self._replica is None else self._replica.sum([float(holds)])[0] > 0
