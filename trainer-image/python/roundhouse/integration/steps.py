"""The steps of a job, for a loop that does not know of dropped steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from ..data import Batch
from ..errors import PeerLost
from ..job import Job
from ..loops import Loop


def complete(job: Job, stops: Callable[[], bool]) -> None:
    """Completes the training of ranks that have left the loop. ``stops``: whether rank 0 stops
    early."""
    loops = job._loops
    while not loops.is_finished:
        try:
            loops.finish()
        except PeerLost as lost:
            # A generation has failed meanwhile. The ranks of the next one stop as well.
            if lost.newer is not None or not stops():
                raise


class Steps:
    """The steps of a job, epoch by epoch. Each step is yielded once, and repeated within
    :meth:`run`."""

    def __init__(self, job: Job, loop: Loop[Batch], total: int):
        self._job = job
        self._total = total
        self._batches: Any = iter(loop)
        # A batch that the next :meth:`take` returns.
        self.ahead: Batch | None = None
        # The current step, or the last one after its commit.
        self.batch: Batch | None = None
        # Whether other ranks have committed that step without this one, which got their state.
        self.is_behind = False
        # Ends before the next step.
        self.until_next = contextlib.ExitStack()

    def meet(self) -> bool:
        """Waits for the other ranks, so that ``job.steps_done`` is known. Returns whether a step is
        due."""
        self.ahead = next(self._batches, None)
        return self.ahead is not None

    def epoch(self) -> Iterator[Batch]:
        """The steps until an epoch ends. The next call continues with the next step."""
        batch = self.take()
        epoch = None if batch is None else batch.step.epoch
        while batch is not None and batch.step.epoch == epoch:
            self.batch, self.is_behind = batch, False
            step = batch.step
            yield batch
            if step.ends_epoch:
                # Ask for the next step later: what the loop does after an epoch belongs to the body
                # of this step.
                return
            batch = self.take()
        # This rank was stopped for so long that the others are in a later epoch.
        self.ahead = batch

    def run(self, attempt: Callable[[Batch], bool]) -> bool:
        """Calls ``attempt``, which ends with ``job.commit``, until the step counts. Returns False
        if other ranks have committed the step without this one."""
        assert self.batch is not None
        number = self.batch.step.number
        while True:
            with self.batch as batch:
                if attempt(batch):
                    return True
            following = next(self._batches, None)
            if following is None or following.step.number != number:
                self.ahead, self.is_behind = following, True
                return False
            self.batch = following

    def leave(self, stops: Callable[[], bool]) -> None:
        """Completes the training, after the last step or where all ranks stop early. ``stops``:
        whether rank 0 stops early."""
        if self._job.steps_done == self._total:
            following = self.take()  # The loop completes the training with all ranks.
            assert following is None
        self.until_next.close()
        self._batches.close()
        complete(self._job, stops)

    def take(self) -> Batch | None:
        """The next batch; None where all steps are committed."""
        self.until_next.close()
        batch, self.ahead = self.ahead, None
        return next(self._batches, None) if batch is None else batch
