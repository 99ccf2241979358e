"""The steps of a job, for a loop that yields a dropped step again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..data import Batch
from ..errors import ConfigError
from ..integration.steps import complete
from ..job import Job
from ..loops import Loop


class Repeats:
    """The steps of a job, epoch by epoch."""

    def __init__(self, job: Job, loop: Loop[Batch], total: int):
        self._job, self._total = job, total
        self._batches: Any = iter(loop)
        self._ahead: Batch | None = None
        # The current step, or the last one.
        self.batch: Batch | None = None
        # Whether its optimizer step is to come.
        self.is_open = False
        # Whether the last step is committed.
        self._is_committed = False

    def meet(self) -> None:
        """Waits for the other ranks, so that ``job.steps_done`` is known."""
        self._ahead = next(self._batches, None)

    def epoch(self) -> int | None:
        """The number of the epoch of the next step. None after the last one."""
        if self._ahead is not None:
            return self._ahead.step.epoch
        if self.batch is None or self._job.steps_done >= self._total:
            return None
        step = self.batch.step
        return step.epoch + int(self._is_committed and step.ends_epoch)

    def batches(self, before: Callable[[Batch | None], None]) -> Iterator[Batch]:
        """The steps until an epoch ends. ``before`` is called with the last step before the next
        one is asked for."""
        epoch: int | None = None
        while True:
            if self.is_open:
                raise ConfigError(
                    "roundhouse.lightning: a batch without optimizer.step(): each batch is one step over all workers; give "
                    "ElasticFabric the global_batch_size in place of an accumulation of gradients"
                )
            before(self.batch)
            batch, self._ahead = self._ahead or next(self._batches, None), None
            if batch is None:
                return
            if epoch is not None and batch.step.epoch != epoch:
                self._ahead = batch  # This rank was stopped for so long that the others are in a later epoch.
                return
            epoch, self.batch, self.is_open = batch.step.epoch, batch, True
            yield batch
            if self._is_committed and batch.step.ends_epoch and not self.is_open:
                # Ask for the next step later: what the script does after an epoch belongs to this
                # step.
                return

    def end(self, *, is_committed: bool) -> None:
        """Must be called after the optimizer step."""
        self.is_open, self._is_committed = False, is_committed

    def leave(self) -> None:
        """Completes the training."""
        if self._job.steps_done == self._total:
            following = next(self._batches, None) if self._ahead is None else self._ahead
            assert following is None
        self._batches.close()
        complete(self._job, lambda: True)
