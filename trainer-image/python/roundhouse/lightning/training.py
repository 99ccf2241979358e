"""A training of a Trainer in a job: how it joins, what stands between two steps, and its end."""

from __future__ import annotations

import contextlib
from typing import Any

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.model_helpers import is_overridden

from ..data import Batch
from ..errors import ConfigError
from ..integration.afterwards import Afterwards, stays_member
from ..integration.loaders import options_of
from ..integration.missed import unchanged
from ..integration.parts import Parts
from ..integration.steps import Steps
from ..integration.waiting import may_lose_peer
from ..job import Job
from ..sampler import Step
from . import internals
from .callback_states import CallbackStates
from .joining import join_once
from .logs import TrainingLogs, adopt_evaluation
from .pauses import Pause
from .plan import Plan
from .stand_ins import Stepped
from .validation import Validations


class _First(Callback):
    """Stands before all callbacks, so that they find the values of all workers."""

    def __init__(self, training: Training):
        self._training = training

    def on_train_batch_end(self, *_: Any) -> None:
        self._training.may_save()

    def on_validation_start(self, *_: Any) -> None:
        self._training.begin_pause()

    def on_validation_end(self, *_: Any) -> None:
        self._training.adopt()

    def on_train_epoch_end(self, *_: Any) -> None:
        self._training.end_epoch()

    def on_train_end(self, *_: Any) -> None:
        self._training.leave()


class Training:
    """One call of ``fit``. ``state``: more entries for ``rh.join(state=...)``. ``options``: those
    of ``rh.join``. ``divides``: whether the ranks divide its validations."""

    def __init__(
        self, trainer: Any, plan: Plan, *, state: dict[str, Any], options: dict[str, Any], patience: float, divides: bool
    ):
        self._trainer, self.plan = trainer, plan
        # To undo at the end, and before the next step.
        self._changes, self._missed = contextlib.ExitStack(), contextlib.ExitStack()
        # Whether the loop has got a step that is not committed, and whether the training is over.
        self._is_open = self._has_left = False
        # Whether the other ranks have passed this place without this one.
        self._is_apart = False
        # What follows the training in a worker.
        self.afterwards: Afterwards | None = None
        configs = trainer.strategy.lr_scheduler_configs
        self._schedulers = [(config.scheduler, config.interval, config.frequency) for config in configs]
        named = [(f"{index}.{callback.state_key}", callback) for index, callback in enumerate(trainer.callbacks)]
        self._states = CallbackStates([pair for pair in named if is_overridden("state_dict", pair[1])], trainer)
        entries = {"model": trainer.lightning_module, "optimizer": trainer.optimizers[0], "callbacks": self._states}
        entries |= {f"scheduler{index}": scheduler for index, (scheduler, _, _) in enumerate(self._schedulers)}
        self._more_state = list(state.values())
        self.job: Job = join_once({**entries, **state}, options, "fit()")
        self.job.__enter__()
        self._pause = Pause(self.job, patience)
        self._divides = divides
        self._validations: Validations | None = None

    def begin(self, ddp: dict[str, Any]) -> Any:
        """Meets the other ranks. Returns the module whose backward pass sums the gradients."""
        trainer, plan, job = self._trainer, self.plan, self.job
        job.on_generation(self._enter_generation)
        model = job.model(trainer.lightning_module, **ddp)
        options = {**options_of(plan.loader), "worker_init_fn": plan.loader.worker_init_fn}
        options["collate_fn"] = Parts(plan.loader.collate_fn, plan.batch_size)
        self.steps = Steps(job, job.steps(plan.loader.dataset, plan.sampler, **options), plan.steps)
        metrics = internals.metrics_of(trainer.lightning_module)
        internals.compute_apart(metrics)
        self.logs = TrainingLogs(trainer, metrics, job)
        self._change()
        is_due = self.steps.meet()
        epochs = job.steps_done // plan.steps_per_epoch
        internals.count_epochs(trainer, epochs if is_due else max(epochs, trainer.max_epochs), job.steps_done)
        internals.show_progress(trainer, trainer.is_global_zero)
        return model

    def _change(self) -> None:
        """What the Trainer must not do itself, until the end of the training."""
        trainer, undo = self._trainer, self._changes.callback
        first = _First(self)
        trainer.callbacks.insert(0, first)
        undo(lambda: trainer.callbacks.remove(first))
        if self._divides:
            self._validations = Validations(self.job, trainer, lambda: self._is_with_others)
            undo(self._validations.close)
        for config in trainer.strategy.lr_scheduler_configs:
            undo(setattr, config, "scheduler", config.scheduler)
            config.scheduler = Stepped(config.scheduler)
        # The commit clips by the norm. What clips otherwise runs before it, with the gradients of
        # all workers.
        self.max_norm: float | None = None
        algorithm = str(getattr(trainer.gradient_clip_algorithm, "value", trainer.gradient_clip_algorithm or "norm"))
        if (
            algorithm == "norm"
            and trainer.gradient_clip_val
            and not is_overridden("configure_gradient_clipping", trainer.lightning_module)
        ):
            self.max_norm = float(trainer.gradient_clip_val)
            undo(setattr, trainer, "gradient_clip_val", trainer.gradient_clip_val)
            trainer.gradient_clip_val = None
        if internals.IS_WORKER:
            internals.keep_signal_handlers(trainer)
            # A worker that joins later would check while the others train.
            undo(setattr, trainer, "num_sanity_val_steps", trainer.num_sanity_val_steps)
            trainer.num_sanity_val_steps = 0

    def _enter_generation(self, job: Job) -> None:
        self._trainer.strategy.global_rank = job.rank
        internals.set_rank(job.rank)
        self._states.take(job)
        internals.show_progress(self._trainer, job.rank == 0)
        if internals.IS_WORKER and job.rank == 0:
            internals.keep_csv_files(self._trainer)

    def leave(self) -> None:
        """Completes the training with all ranks."""
        if not self._has_left:
            self._has_left = True
            self._end_pause()
            self.steps.leave(lambda: bool(self._trainer.should_stop))
            if stays_member():
                self.afterwards = Afterwards(self.job, self.plan.steps)

    def close(self, error: BaseException | None) -> None:
        """Ends the membership, after an error with its words. Without an error a worker remains a
        member until its script ends."""
        self._missed.close()
        self._changes.close()
        if error is None and self.afterwards is not None:
            self.afterwards.stay()
            return
        self.job.__exit__(None if error is None else type(error), error, None if error is None else error.__traceback__)

    # The steps.

    def begin_step(self, batch: Batch) -> Any:
        """Must be called for each step. Returns the batch of its first pass, for the loop."""
        self._is_open, self._is_apart = True, False
        internals.count(self._trainer, batch.step, self.plan.steps_per_epoch)
        return batch.data[0]

    def due_schedulers(self, step: Step) -> list[Any]:
        """The schedulers that the commit of a step calls."""
        return [
            scheduler
            for scheduler, interval, frequency in self._schedulers
            if interval == "step" or (step.ends_epoch and (step.epoch + 1) % frequency == 0)
        ]

    def commit(self) -> None:
        """Must be called when the step is committed."""
        assert self.steps.batch is not None
        self._is_open = False
        self.logs.commit(self.steps.batch.step)

    def miss(self) -> None:
        """Must be called if the other ranks have committed the step without this one. They have
        also done what follows it."""
        self._is_open, self._is_apart = False, True
        self.logs.drop()
        self._missed.callback(setattr, self._trainer, "limit_val_batches", self._trainer.limit_val_batches)
        self._trainer.limit_val_batches = 0
        self.steps.until_next.enter_context(unchanged(self._more_state, self._trainer.optimizers[0]))

    def end_step(self) -> bool:
        """Must be called before the next step. Returns whether rank 0 has stopped the training."""
        if self._is_open:
            raise ConfigError(
                "roundhouse.lightning: a step was skipped, such as by on_train_batch_start with -1 or an optimizer_step that does not "
                "call optimizer.step(closure=...): all workers have to make it; return a loss of zero, or train with fewer samples"
            )
        self._missed.close()
        self._end_pause()
        return bool(self._trainer.should_stop and self._trainer.fit_loop._can_stop_early)

    def miss_epoch(self) -> None:
        """Must be called if this rank has missed the rest of an epoch."""
        self._is_apart = True
        if self.steps.ahead is None:
            internals.count_steps(self._trainer, self.job.steps_done)

    # Between two steps.

    @property
    def _is_with_others(self) -> bool:
        """Whether all ranks are at this place."""
        return not (self._has_left or self._trainer.sanity_checking or self._is_apart)

    def begin_pause(self) -> None:
        """Begins a time in which a rank may evaluate or save."""
        if self._is_with_others:
            self._pause.begin()

    def _end_pause(self) -> None:
        """All ranks take the decisions of rank 0."""
        if self._pause.end():
            with may_lose_peer():
                self._states.take(self.job)

    def may_save(self) -> None:
        """Begins a pause in the steps in which a callback saves."""
        steps = [getattr(callback, "_every_n_train_steps", 0) for callback in self._trainer.checkpoint_callbacks]
        if any(every and self._trainer.global_step % every == 0 for every in steps):
            self.begin_pause()

    def end_epoch(self) -> None:
        """Exchanges what was logged in the epoch."""
        if self._is_apart:
            ahead = self.steps.ahead
            epochs = self.job.steps_done // self.plan.steps_per_epoch
            internals.end_epoch_before(
                self._trainer, max(epochs, self._trainer.max_epochs) if ahead is None else ahead.step.epoch
            )
            self.logs.leave_epoch()
            return
        self.begin_pause()
        self.logs.end_epoch()

    def adopt(self) -> None:
        """All ranks take the metrics of the evaluation of rank 0, unless they have computed it
        together."""
        is_shared = self._validations is not None and self._validations.end()
        if not is_shared and self._is_with_others and self.job.world_size > 1:
            with may_lose_peer():
                adopt_evaluation(self.job, self._trainer)
