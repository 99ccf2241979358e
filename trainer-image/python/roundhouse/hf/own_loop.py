"""The passes of a training whose loop belongs to the script, such as one for accelerate.

The loop gets one pass after the other. The optimizer's step after the last pass of a step commits
it. A step that was dropped looks like accumulation that continues: the loop gets its passes again.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ..data import Batch
from ..integration.missed import unchanged
from ..integration.parts import part_sizes
from ..integration.steps import Steps
from ..job import Job
from . import refusals_of_loop as refusals
from .weighing import nothing


class Stage(enum.Enum):
    """What has happened to the current pass."""

    # There is none, because the loop has not begun.
    NONE = enum.auto()
    # A pass that is not the last one of its step.
    EARLY = enum.auto()
    # The last pass of a step.
    LAST = enum.auto()
    COMMITTED = enum.auto()
    DROPPED = enum.auto()
    # The other ranks have committed the step without this one, which only counts it.
    MISSED = enum.auto()


class OwnLoop:
    """The passes of all steps of a job.

    ``net``: the result of ``job.model``. ``steps``: batches that consist of passes of at most
    ``pass_size`` samples. ``between()`` is called before the next step is known, ``begin(batch)``
    before its passes, and ``show(is_last)`` when a pass begins or was dropped.
    ``weigh(inputs, size, loss)`` returns the factor that makes the loss of a pass a sum.
    ``more_state``: entries of the state that the script changes itself.
    """

    def __init__(
        self,
        job: Job,
        net: Any,
        steps: Steps,
        optimizer: torch.optim.Optimizer,
        schedulers: Sequence[Any],
        *,
        pass_size: int,
        total: int,
        steps_per_epoch: int,
        between: Callable[[], None],
        begin: Callable[[Batch], None],
        show: Callable[[bool], None],
        weigh: Callable[[Any, int, Any], float],
        more_state: Sequence[Any],
    ):
        self._job, self._net, self._steps = job, net, steps
        self._optimizer, self._schedulers = optimizer, list(schedulers)
        self._pass_size, self.total, self.steps_per_epoch = pass_size, total, steps_per_epoch
        self._between, self._begin, self._show, self._weigh = between, begin, show, weigh
        self._more_state = more_state
        self.stage = Stage.NONE
        # Number of steps that the script has counted. In a new worker it begins with those of the
        # job.
        self.counted = job.steps_done
        self._batch: Batch | None = None
        self._inputs: Any = None
        self._size = 0
        # Sum of the losses of this rank's share, and their weight.
        self._loss: Any = 0.0
        self._weight: float = 0.0
        self._has_passed = self._has_stepped_schedulers = False
        # Identities and versions of the gradients after the last pass.
        self._gradients: list[tuple[int, int]] = []
        self._most: float | None = None
        self._norm: torch.Tensor | None = None

    @property
    def is_in_step(self) -> bool:
        """Whether the script is between the begin of a step and its commit."""
        return self.stage in (Stage.EARLY, Stage.LAST)

    def epoch(self, moved: Callable[[Any], Any]) -> Iterator[Any]:
        """The inputs of the passes until an epoch ends, on the device. The next call continues with
        the next step."""
        while self.counted < self.total:
            self._between()
            batch = self._steps.take()
            if batch is not None and batch.step.number == self.counted + 1:
                yield from self._passes(batch, moved)
            else:
                # This rank was stopped, or does not know that a step was committed.
                self._steps.ahead = batch
                self.stage = Stage.MISSED
                self.counted += 1
                self._show(True)
                self._steps.until_next.enter_context(unchanged(self._more_state, self._optimizer))
                # Otherwise DDP would prepare for a backward pass, and sum in the next pass, also in
                # no_sync.
                with self._net.no_sync():
                    yield self._inputs
            if self.stage is not Stage.DROPPED and self.counted % self.steps_per_epoch == 0:
                return

    def _passes(self, batch: Batch, moved: Callable[[Any], Any]) -> Iterator[Any]:
        self._batch, self._loss, self._weight = batch, 0.0, 0.0
        self.stage = Stage.DROPPED
        self._most = self._norm = None
        sizes = part_sizes(batch.step.size, self._pass_size)
        with batch:
            self._begin(batch)
        for index, (data, size) in enumerate(zip(batch.data, sizes)):
            if not self._is_open():
                break
            is_last = index == len(sizes) - 1
            self.stage = Stage.LAST if is_last else Stage.EARLY
            self._inputs, self._size = moved(data), size
            self._has_passed = self._has_stepped_schedulers = False
            self._show(is_last)
            with contextlib.nullcontext() if is_last else self._net.no_sync():
                yield self._inputs
            self._check_pass()
        if self.stage is not Stage.COMMITTED:
            self.stage = Stage.DROPPED

    def _is_open(self) -> bool:
        return self._batch is not None and self._job._open.step is self._batch.step

    def _check_pass(self) -> None:
        if self.is_in_step:
            refusals.refuse_missing_backward(self._has_passed)
        refusals.refuse_missing_step(was_missed=self.stage is Stage.LAST)
        if self.stage is Stage.COMMITTED and self._schedulers:
            refusals.refuse_missing_scheduler(self._has_stepped_schedulers)

    def backward(self, loss: Any, run: Callable[[Any], None]) -> None:
        """Computes the gradients of a pass. ``run`` is the backward pass of a loss."""
        if self.stage in (Stage.MISSED, Stage.DROPPED):
            return
        refusals.refuse_backward(is_in_step=self.is_in_step, has_passed=self._has_passed)
        self._has_passed = True
        factor = self._weigh(self._inputs, self._size, loss)
        assert self._batch is not None
        with self._batch:
            run(loss * factor if factor else nothing(self._net))
        if factor:  # The mean over no labels is not a number.
            self._loss = self._loss + loss.detach().to(torch.float64) * factor
        self._weight += factor
        if self.stage is Stage.LAST:
            self._gradients = self._versions()

    def _trained(self) -> list[torch.Tensor]:
        return [weight for group in self._optimizer.param_groups for weight in group["params"] if weight.requires_grad]

    def _versions(self) -> list[tuple[int, int]]:
        return [(id(weight.grad), -1 if weight.grad is None else weight.grad._version) for weight in self._trained()]

    def clip(self, parameters: Sequence[torch.Tensor], most: float) -> torch.Tensor:
        """Lets the commit clip the gradients. Returns a tensor that gets their norm then."""
        norm = torch.full((), float("nan"), dtype=torch.float64)
        if self.stage is Stage.LAST:
            refusals.refuse_part_of_gradients(parameters, self._trained())
            self._most, self._norm = float(most), norm
        return norm

    def step(self) -> None:
        """Commits the step after its last pass."""
        if self.stage in (Stage.EARLY, Stage.MISSED, Stage.DROPPED):
            return
        refusals.refuse_step(is_last=self.stage is Stage.LAST)
        assert self._batch is not None
        counts = False
        if self._is_open():
            refusals.refuse_missing_backward(self._has_passed)
            refusals.refuse_changed_gradients(self._gradients != self._versions())
            with self._batch:
                counts = self._job.commit(
                    self._loss, self._optimizer, self._schedulers, max_grad_norm=self._most, weight=self._weight
                )
        self.stage = Stage.COMMITTED if counts else Stage.DROPPED
        if not counts:
            self._show(False)
            return
        self.counted += 1
        if self._norm is not None:
            self._norm.fill_(self._job.grad_norm or 0.0)

    def step_scheduler(self) -> None:
        """Notes that the script has stepped a scheduler, which the commit has done."""
        self._has_stepped_schedulers = True

    def leave(self) -> None:
        """Completes the training with all ranks."""
        self._steps.leave(lambda: False)
