"""One step, from its start until it is committed or dropped."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ._native import Process, fault_point
from .buffers import Buffers
from .clipping import Clipping
from .column_sums import ColumnSums, clip
from .commit_checks import CommitChecks
from .digests import digest_of, portions
from .errors import LOST_IN_REPLICA, ConfigError, Diverged, NotCommitted, PeerLost, words_of
from .generations import Generations
from .local_parts import local_gradients
from .migration import is_without_group
from .sampler import Sampler, Step
from .seeding import mixed, seed_all
from .sharded import forget_accumulated, reshard
from .shared_buffers import SharedBuffers
from .shared_scaler import check_scaler, unscale, update_scaled
from .slice_sums import SliceSums
from .state import Row
from .step_numbers import Number, StepNumbers
from .structure import Structure
from .updates import (
    clip_factor,
    forget_gradients,
    gradient_norm,
    learning_rate,
    loss_sum,
    multiply_gradients,
    schedulers_of,
    unscaled_norm,
    update,
    weight_of,
)


class Outcome(NamedTuple):
    """The result of a committed step."""

    loss: float
    # Norm of the step's gradients before clipping.
    grad_norm: float


def _known(loss: Number | None) -> Number:
    if loss is None:
        raise ConfigError("job.commit(None, ...): give the loss; None is for processes of a replica that do not know it")
    return loss


class OpenStep:
    """The current step, if there is one, and the objects that a step changes."""

    def __init__(self, process: Process, row: Row, generations: Generations, *, is_manual: bool, seeds: bool):
        entries = row.entries.values()
        self.optimizers = [entry for entry in entries if isinstance(entry, torch.optim.Optimizer)]
        self.step: Step | None = None
        # The last step or slice that has begun.
        self.begun: Step | None = None
        # Whether the body of the loop runs, also after its commit.
        self.is_in_body = False
        self._scalers = [entry for entry in entries if isinstance(entry, torch.amp.GradScaler)]
        self._modules = [entry for entry in entries if isinstance(entry, torch.nn.Module)]
        self._buffers = Buffers(self._modules)
        self._structure = Structure(row.entries)
        self._process = process
        self._row = row
        self._generations = generations
        self._gradients = generations.gradients
        self.is_manual = is_manual
        self._seeds = seeds
        self._replica = generations.replica
        self._columns = None if self._replica is None else ColumnSums(self._gradients, self._replica, row)
        self._slices = SliceSums(self._gradients, self._buffers, self._replica, generations.device)
        self._shared_buffers = SharedBuffers(self._buffers, generations)
        self._checks = CommitChecks(row, self._gradients, self._replica, is_manual=is_manual)
        # Whether the job itself changes gradients and steps optimizers.
        self._is_committing = False
        # Whether the state may be another one than that of the last committed step: an update has
        # begun or failed, or the script may change it.
        self.is_changed = False
        # Whether the step was committed without optimizers: the script changes its tensors itself
        # in the rest of the body.
        self._is_left_to_script = False
        self._began_at = self._pass_began_at = 0.0
        # Seconds in which the step has waited for its samples.
        self._waited = 0.0
        # The arguments with which the first slice of the step was committed.
        self._arguments: tuple[object, ...] = ()
        # The outcome of the last committed step of this process.
        self.outcome: Outcome | None = None
        self._hook = register_optimizer_step_pre_hook(self._check_step)
        self._clipping = Clipping(self._is_not_summed)

    def close(self) -> None:
        """Must be called when no further step begins."""
        self._hook.remove()
        self._clipping.close()
        self.step = None
        self.is_in_body = False

    @property
    def is_between_slices(self) -> bool:
        """Whether a slice of a step is committed, and a further one has not begun."""
        return self.step is None and self._slices.has_begun

    @property
    def has_slices(self) -> bool:
        """Whether a slice of a step is committed, and the step is not complete."""
        return self._slices.has_begun

    @property
    def is_incomplete(self) -> bool:
        """Whether a step has begun that is neither committed nor dropped."""
        return self.step is not None or self._slices.has_begun

    def begin(self, step: Step, sampler: Sampler) -> None:
        """Begins a step, or its next slice."""
        gradients = self._gradients
        is_first = not self._slices.has_begun
        if self._is_left_to_script:
            # The script has used the gradients of the previous step in the rest of its body.
            self._forget_gradients_of_models()
        gradients.begin(step)
        is_mean = sampler.reduction == "mean"
        gradients.weight = step.size / step.global_size if is_mean else float(step.size > 0)
        gradients.weight_of_replica = self._weight_of_replica(step, sampler) if is_mean else 1.0
        self._is_left_to_script = False
        self.step = self.begun = step
        self._pass_began_at = time.perf_counter()
        if is_first:
            self._buffers.remember()
            self._began_at, self._waited = self._pass_began_at, 0.0
            fault_point("Forward", self._generations.place.rank, step.number)

    def _weight_of_replica(self, step: Step, sampler: Sampler) -> float:
        """The share of the samples that the processes of this replica have together."""
        if self._replica is None:
            return 1.0
        if sampler.slices is not None:
            return sampler.share_of_slice(step)
        return sum(self._generations.sizes_of_replica(step)) / step.global_size

    def loaded(self) -> None:
        """Must be called when the samples of the pass are loaded."""
        self._waited += time.perf_counter() - self._pass_began_at

    def commit(
        self,
        loss: torch.Tensor | float | None,
        optimizer: Any,
        scheduler: Any,
        *,
        scaler: Any,
        max_grad_norm: float | None,
        weight: torch.Tensor | float | None,
    ) -> bool:
        """Implements :meth:`Job.commit <roundhouse.job.Job.commit>`."""
        self._is_committing = True
        try:
            return self._commit(loss, optimizer, scheduler, scaler, max_grad_norm, weight)
        finally:
            self._is_committing = False

    def _commit(
        self, loss: Number | None, optimizer: Any, scheduler: Any, scaler: Any, max_grad_norm: float | None, weight: Number | None
    ) -> bool:
        step = self.step
        if step is None:
            raise NotCommitted("job.commit outside of a step: call it once in the body of `for batch in job.steps(...)`")
        if hasattr(loss, "param_groups"):
            raise ConfigError(f"job.commit(loss, optimizer, ...): the first argument is the loss, not the {type(loss).__name__}")
        optimizers = self._checks.optimizers(optimizer, self.optimizers)
        schedulers = schedulers_of(scheduler)
        for entry in (*schedulers, scaler):
            self._checks.check_entry(entry)
        # Scripts often pass a scaler that is switched off; it scales nothing.
        scaler = scaler if scaler is not None and scaler.is_enabled() else None
        ended_at = time.perf_counter()
        if self._replica is not None:
            reshard(self._modules)
        self._structure.check()
        trained = self._trained(optimizers)
        if self._replica is not None:
            check_scaler(scaler, optimizers, trained, self._generations.device)
        sampler, gradients = self._generations.sampler, self._gradients
        assert sampler is not None
        reduction = sampler.reduction
        self._checks.check_schedulers(schedulers, self._generations.place.generation)
        self._checks.check_shared(optimizers)
        self._checks.check_gradients(optimizers, trained)
        self._checks.check_summed(optimizers, reduction)
        # With a weight, gradients are clipped after the division by the weight of all ranks, which
        # is known later.
        clipped_to = max_grad_norm if scaler is None and weight is None else None
        own_weight = weight_of(weight, step, reduction, is_manual=self.is_manual)
        shared_norm = None
        if sampler.slices is not None:
            self._checks.check_unscaled(scaler, optimizers)
            self._check_arguments(step, (*map(id, schedulers), scaler is None, max_grad_norm, weight is None))
            self._add_slice(step, sampler, trained, loss, own_weight)
            if not step.ends_step:
                # No gradient of this slice must enter the next one.
                self._forget_gradients(optimizers)
                self.step = None
                return False
            total, own_weight, shared_norm = self._sum_slices(step, sampler, trained)
        elif self._columns is not None:
            self._columns.sum(trained, self._generations.group)
            total, own_weight, shared_norm = self._columns.numbers(loss, own_weight, step, reduction, trained)
        else:
            total = loss_sum(_known(loss), step, reduction)
        digest = self._digest(optimizers, trained, self._shared_buffers.share(step))
        # Everything that can fail on a single rank comes before the vote, because the others commit
        # what this rank has voted for. The norm of summed gradients is computed during the vote,
        # because it is the same on all ranks; the norm of a script that sums gradients itself may
        # differ. With a scaler the gradients stay scaled until the vote, because unscaling cannot
        # be repeated. The host reads no number from the device before the vote: see StepNumbers.
        norm = gradient_norm(trained, clipped_to) if self.is_manual else 0.0
        numbers = StepNumbers(
            self._generations.device,
            total,
            own_weight,
            norm if scaler is None else 0.0,
            digest,
            self._replica,
            step.number,
        )
        if gradients.broken is None:
            self._process.vote(numbers)
        if self.is_manual:
            numbers.norm = norm
        elif shared_norm is not None:
            numbers.norm = clip(trained, shared_norm, clipped_to)
        else:
            numbers.norm = gradient_norm(trained, clipped_to)
        if scaler is not None:
            numbers.scale = scaler.get_scale() if scaler._scale is None else scaler._scale
        agreed = self._process.agree(broke=gradients.broken)
        numbers.end_without_vote()
        is_confirmed, is_in_doubt = self._confirmed(isinstance(agreed, tuple))
        if not is_confirmed and isinstance(agreed, tuple):
            agreed, gradients.broken = None, LOST_IN_REPLICA
        agreed_at = time.perf_counter()
        # Drop the gradients; their memory belongs to DDP.
        gradients.buckets.clear()
        if not isinstance(agreed, tuple):
            numbers.check_weight()
            if agreed is not None:
                gradients.broken = agreed
            self._generations.check_drop(step, gradients)
            self.drop()
            return False
        mean_loss, all_finite, all_weight = agreed
        norm = float(numbers.norm)
        all_finite = all_finite and (math.isfinite(norm) or scaler is not None)
        if all_weight > 0:
            norm /= all_weight
            # One pass over the memory of the gradients divides and clips them.
            multiply_gradients(trained, clip_factor(norm, max_grad_norm if scaler is None else None) / all_weight)
        if scaler is not None:
            # PyTorch would divide by 0, and the weights would become NaN.
            if numbers.scale == 0:
                raise Diverged(
                    f"step {step.number}: loss {mean_loss:.4}: the scale of the scaler has fallen to 0, because the gradients of "
                    "many steps were not finite: training diverges; lower the learning rate or add a warm-up"
                )
            if self._replica is not None:
                unscale(trained, float(numbers.scale))
                norm = clip(trained, norm / float(numbers.scale), max_grad_norm)
            else:
                norm = unscaled_norm(optimizers, trained, max_grad_norm, scaler, norm, float(numbers.scale))
        elif not (all_finite and math.isfinite(mean_loss)):
            raise Diverged(
                f"step {step.number}: loss {mean_loss:.4}, gradient norm {norm:.4}: training diverges; lower the learning "
                "rate, add a warm-up, or give job.commit max_grad_norm"
            )
        self._apply(step, optimizers, schedulers, scaler, norm, ended_at=ended_at, agreed_at=agreed_at, is_in_doubt=is_in_doubt)
        self.outcome = Outcome(mean_loss, norm)
        return True

    def _add_slice(
        self, step: Step, sampler: Sampler, trained: Sequence[torch.Tensor], loss: Number | None, weight: Number
    ) -> None:
        """Takes the gradients of a slice, and its numbers."""
        if self._columns is None:
            total = loss_sum(_known(loss), step, sampler.reduction)
        else:
            total, weight = self._columns.numbers_of_slice(loss, weight, step, sampler.reduction)
        self._slices.add(step, sampler, trained, total, weight)

    def _sum_slices(
        self, step: Step, sampler: Sampler, trained: Sequence[torch.Tensor]
    ) -> tuple[Number, Number, float | None]:
        """Sums the slices of a step over the ranks. Returns this rank's part of the loss and of its
        weight, and the norm of the gradients if they are sharded."""
        group, norm = self._generations.group, None
        total, weight = self._slices.sum(step, sampler, group)
        if self._columns is not None:
            total, weight, norm = self._columns.totals(total, weight, trained)
        # One rank contributes the sums to the vote, so that they are not added up again.
        return (total, weight, norm) if group is None or group.rank == 0 else (0.0, 0.0, norm)

    def _apply(
        self,
        step: Step,
        optimizers: list[torch.optim.Optimizer],
        schedulers: list[Any],
        scaler: Any,
        norm: float,
        *,
        ended_at: float,
        agreed_at: float,
        is_in_doubt: bool,
    ) -> None:
        """Applies a step that all ranks have voted for: the optimizers step, and the step
        counts. ``is_in_doubt``: this process does not know whether its replica has committed the
        step."""
        self.is_changed = True
        rate = learning_rate(optimizers)
        sampler = self._generations.sampler
        if self._seeds and sampler is not None:
            # An optimizer may draw random numbers, and the passes of each rank have drawn others.
            seed_all(mixed(sampler.seed, step.number, step.rank % sampler.num_parts, 2))
        if self._replica is not None and scaler is not None:
            skipped = update_scaled(optimizers, schedulers, scaler, norm)
        else:
            skipped = update(optimizers, schedulers, scaler)
        self._checks.note_stepped(schedulers)
        # Also those of optimizers that this step does not use: a pass through a discriminator
        # leaves gradients, which must not enter the next step.
        forget_gradients([*self.optimizers, *optimizers])
        computed = self._gradients.computed_at or ended_at
        spent = [
            max(self._waited, 0.0),
            0.0,
            max(computed - self._began_at - self._waited, 0.0),
            max(ended_at - computed, 0.0) + agreed_at - ended_at,
            time.perf_counter() - agreed_at,
        ]
        self.step = None
        self._is_left_to_script = not optimizers
        self._generations.steps_done = step.number
        if is_in_doubt:
            self._process.conclude_in_doubt(skipped=skipped)
            return
        self._process.conclude(skipped=skipped, gradient_norm=norm, learning_rate=rate, spent=spent)

    def _confirmed(self, has_agreed: bool) -> tuple[bool, bool]:
        """Whether the step holds in all processes of the replica, and whether that is in doubt: the
        replica was lost after this process had voted, and the others may have committed the step.
        Then this process has saved its part of the state before the step, and has to end after the
        body of the loop."""
        if self._replica is not None:
            # Such a process does not vote.
            self._replica.check()
        try:
            return self._generations.confirm(has_agreed), False
        except PeerLost:
            if not has_agreed:
                raise
            self.save_part()
            return True, True

    def save_part(self) -> None:
        """Saves this process's part of the last committed state for the next life of the replica,
        if the job keeps copies and the script cannot have changed the state since. Must be called
        if the replica has lost a process."""
        if self.is_changed:
            return
        try:
            with self._buffers.as_before() if self.is_incomplete else contextlib.nullcontext():
                self._process.save_part()
        except Exception as trouble:
            print(f"roundhouse: this process cannot save its part of the state: {words_of(trouble)}", file=sys.stderr)

    def _digest(
        self, optimizers: Sequence[torch.optim.Optimizer], trained: Sequence[torch.Tensor], shared: torch.Tensor | None
    ) -> Number:
        """A number for the bits of the summed gradients and of the shared buffers. If a collective
        was cut off or a device computes wrong results, it differs between ranks, and no rank may
        commit the step."""
        gradients = self._gradients
        if self._generations.group is None or gradients.broken is not None:
            return 0.0
        summed: Iterable[torch.Tensor] = gradients.buckets.values()
        if self.is_manual:
            # A script that changes its tensors itself may sum other values.
            summed = portions([p.grad for p in trained if p.grad is not None]) if optimizers else ()
        elif self._columns is not None or gradients.is_sliced:
            summed = portions(local_gradients(trained))
        return digest_of([*summed, *([] if shared is None else [shared])], self._generations.device)

    def drop(self) -> None:
        """Undoes the step and ends the generation."""
        self.forget()
        self._generations.leave()

    def forget(self) -> None:
        """Undoes the step."""
        for scaler in self._scalers:
            if not scaler.is_enabled():
                continue  # A scaler that is switched off keeps no state.
            # The scaler must also forget that the script has unscaled the gradients.
            scaler._per_optimizer_states.clear()
        self.step = None
        self._slices.forget()
        self._gradients.buckets.clear()
        self._buffers.restore()
        # Also those of optimizers that the step does not use, because its passes are repeated.
        forget_gradients(self.optimizers)
        if self._replica is not None:
            forget_accumulated(self._modules)
        self._forget_gradients_of_models()

    def _forget_gradients(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        forget_gradients([*self.optimizers, *optimizers])
        self._forget_gradients_of_models()

    def _forget_gradients_of_models(self) -> None:
        """Drops the gradients of the models, for a script that changes its tensors itself: no
        optimizer of the state has them."""
        for model in self._gradients.models:
            for parameter in model.parameters():
                parameter.grad = None

    def collective_failed(self, error: BaseException) -> bool:
        """Must be called when a collective of the script may have failed in the loop. Returns
        whether the loop continues and repeats an open step."""
        if self._replica is not None and self._replica.explains(error):
            return False
        # A rank is lost, and the rest of the body runs without a group. The loop then repeats the
        # step.
        is_dropped = self.is_in_body and self._generations.is_between_generations
        if is_dropped and (isinstance(error, RuntimeError) or is_without_group(error)):
            return True
        if not isinstance(error, (RuntimeError, PeerLost)):
            return False
        if self._replica is not None and isinstance(error, RuntimeError):
            # The script has no collectives over the replicas but job.sum. Without this process the
            # others of its replica would wait for it.
            return False
        if isinstance(error, PeerLost):
            # job.sum has lost the generation. A process that a newer generation has superseded
            # ends.
            return error.newer is None
        is_open = self.is_incomplete
        if self._generations.group is None or self._generations.is_of_script(error, is_open=is_open):
            return False
        self._gradients.broke(error)
        if is_open:
            self._process.agree(broke=self._gradients.broken)
            self.drop()
        else:
            self._process.lose(str(self._gradients.broken))
            self._generations.leave()
        return True

    def _trained(self, optimizers: Sequence[torch.optim.Optimizer]) -> list[torch.Tensor]:
        """The tensors that the step trains, or those of the models for a script that changes its
        tensors itself."""
        if optimizers:
            return [p for one in optimizers for group in one.param_groups for p in group["params"]]
        return [p for model in self._gradients.models for p in model.parameters()]

    def _check_arguments(self, step: Step, arguments: tuple[object, ...]) -> None:
        """Raises ConfigError unless all slices of a step have the same arguments: the last commit
        of each rank decides on the update, and ranks end with different slices."""
        if not self._slices.has_begun:
            self._arguments = arguments
        elif self._arguments != arguments:
            raise ConfigError(
                f"job.commit of slice {step.slice} has another scheduler, scaler, max_grad_norm or weight than that of the slice "
                "before: give all commits of a step the same ones; each rank ends the step with another slice"
            )

    def _check_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """PyTorch calls this before each step of every optimizer in this process."""
        if not (self.step is not None or self.is_in_body) or self._is_committing:
            return
        if any(optimizer is own for own in self.optimizers):
            raise NotCommitted("optimizer.step() outside of job.commit: job.commit steps the optimizers; remove the call")
        if self._is_left_to_script:
            return
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        # An optimizer does not change frozen tensors, unless they have an older gradient.
        stepped = [parameter for parameter in parameters if parameter.requires_grad or parameter.grad is not None]
        if self._row.names_of(stepped):
            raise NotCommitted(
                f"{type(optimizer).__name__}.step() of an optimizer that is not in rh.join(state=...) would change "
                f"{self._checks.named(stepped)}: add it to the state, and remove the call, job.commit does it"
            )

    def _is_not_summed(self, parameters: Sequence[torch.Tensor]) -> bool:
        """Whether the commit has to sum the gradients of these parameters."""
        if self.step is None or self._is_committing or not (self._replica is not None or self._gradients.is_sliced):
            return False
        return bool(self._row.names_of(parameters))
