"""One step of a Trainer: the passes of this rank's share, and the commit."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from ...integration.missed import unchanged
from ...integration.parts import part_sizes
from ...integration.random_numbers import same_random_numbers
from ...integration.steps import Steps
from ...job import Job
from ...replica import current
from ...sampler import Step
from ...sharded import scale
from .. import refusals
from ..weighing import Weighing, nothing, with_labels
from .libraries import unmeasured

if TYPE_CHECKING:
    from transformers import Trainer as Host
else:
    Host = object


class OneStep(Host):
    """A part of :class:`~roundhouse.hf.Elastic`."""

    job: Job | None
    # Known while the loop of the training runs.
    _steps: Steps | None
    # The optimizer and the scheduler that the job steps.
    _own: tuple[Any, Any]
    # The model whose backward pass sums gradients over the ranks.
    _net: Any
    _weighing: Weighing
    # More entries of the state, which callbacks may change.
    _more_state: dict[str, Any]
    # Whether the passes of a step are running.
    _is_passing = False
    # Learning rate of the current step.
    _rate: float | None = None

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        if self._steps is None or self.job is None:
            return super().training_step(model, inputs, num_items_in_batch)
        job, (optimizer, scheduler) = self.job, self._own
        self._rate = super()._get_learning_rate()
        most = self.args.max_grad_norm if self.args.max_grad_norm > 0 else None
        self._skip_missed()

        def attempt(batch: Any) -> bool:
            items = [self._get_num_items_in_batch([part], self.args.device) for part in batch.data]
            self._weighing.prepare(batch.step, list(zip(batch.data, items)), job.sum)
            loss, weight = self._passes(batch, items)
            return job.commit(loss, optimizer, scheduler, max_grad_norm=most, weight=weight)

        self._is_passing = True
        is_committed = self._steps.run(attempt)
        self._is_passing = False
        if not is_committed:
            self._skip_missed()
            self._steps.until_next.enter_context(unchanged(self._more_state.values(), optimizer))
        return torch.tensor(job.loss if is_committed else 0.0, device=self.args.device)

    def _skip_missed(self) -> None:
        """Steps that the other ranks have committed without this one do not count in the mean of
        its next log."""
        assert self.job is not None
        self._globalstep_last_logged += self.job.steps_done - self.state.global_step

    def _passes(self, batch: Any, items: list[Any]) -> tuple[Any, Any]:
        """Computes the gradients of this rank's share. ``items``: the number of items of each pass,
        or None. Returns the sum of the losses and their weight."""
        passes = list(zip(batch.data, part_sizes(batch.step.size, self.args.per_device_train_batch_size), items))
        # Processes that share a model wait for each other in each pass.
        passes += [(batch.data[-1], 0, items[-1])] * (self._num_passes(batch.step) - len(passes))
        total, weight = torch.zeros((), dtype=torch.float64, device=self.args.device), 0.0
        for index, (part, size, number) in enumerate(passes):
            counted = self._weighing.weight(part, size, number)
            if not size:
                counted = counted._replace(factor=0.0, items=0)
            self._factor = counted.factor
            self.current_gradient_accumulation_steps = 1
            self._has_passed = False
            if not self._factor and current() is not None:
                part = with_labels(part)
            with contextlib.nullcontext() if index == len(passes) - 1 else self._net.no_sync():
                loss = super().training_step(self._net, part, counted.divisor)
            refusals.refuse_own_backward(type(self), self._has_passed)
            if self._factor:  # The mean over no labels is not a number.
                total += loss * self._factor
            weight += counted.items
        return total, weight

    def _num_passes(self, step: Step) -> int:
        """The number of passes of each process of this replica."""
        assert self.job is not None
        sizes = self.job._generations.sizes_of_replica(step)
        return max(len(part_sizes(size, self.args.per_device_train_batch_size)) for size in sizes)

    def _backward(self, loss: Any, **options: Any) -> None:
        self._has_passed = True
        if self._factor:
            loss = loss * self._factor
        elif current() is None:
            loss = nothing(self._net)
        else:
            # The other processes of the replica wait in the backward pass of the model.
            loss = scale(loss, 0.0)
        type(self.accelerator).backward(self.accelerator, loss, **options)

    def _loss_of(self, inputs: Any, number: Any, seed: int = 0) -> float:
        """The loss of a pass without gradients, for a number of items."""
        self.model.eval()
        with unmeasured(self), torch.no_grad(), same_random_numbers(self.args.device, seed), self.compute_loss_context_manager():
            return float(self.compute_loss(self.model, self._prepare_inputs(inputs), num_items_in_batch=number))

    def _get_learning_rate(self) -> Any:
        # The commit has stepped the scheduler.
        return super()._get_learning_rate() if self._rate is None else self._rate

    def _clip_grad_norm(self, model: Any) -> Any:
        return self._get_grad_norm(model)

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> float | None:
        assert self._steps is not None and self.job is not None
        return None if self._steps.is_behind else self.job.grad_norm

    def floating_point_ops(self, inputs: Any) -> Any:
        if self._steps is None or self._steps.batch is None:
            return super().floating_point_ops(inputs)
        own = sum(super(OneStep, self).floating_point_ops(part) for part in inputs)
        step = self._steps.batch.step
        return own * step.global_size / max(step.size, 1)
