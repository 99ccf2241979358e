"""The strategy of ``lightning.Trainer``."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden

from ..data import Batch
from ..errors import ConfigError
from ..integration.loaders import options_of
from ..integration.parts import Parts, part_sizes
from ..integration.steps import Steps
from ..integration.waiting import may_lose_peer
from ..job import Job
from ..sampler import Step
from . import internals, refusals
from .callback_states import CallbackStates
from .joining import join_once
from .logs import TrainingLogs, adopt_evaluation
from .pauses import Pause
from .plan import Plan, plan_of
from .stand_ins import Epochs, Stepped


class _First(Callback):
    """Stands before all callbacks, so that they find the values of all workers."""

    def __init__(self, strategy: Elastic):
        self._strategy = strategy

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self._strategy._may_save(trainer)

    def on_validation_start(self, trainer: Any, *_: Any) -> None:
        self._strategy._begin_pause(trainer)

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        self._strategy._adopt(trainer)

    def on_train_epoch_end(self, trainer: Any, *_: Any) -> None:
        self._strategy._end_epoch(trainer)

    def on_train_end(self, trainer: Any, *_: Any) -> None:
        self._strategy._leave(trainer)


class Elastic(SingleDeviceStrategy):
    """Makes a Trainer elastic: ``Trainer(strategy=Elastic(global_batch_size=256))``.

    ``global_batch_size``: samples of a step over all workers, whatever their number. The
    ``batch_size`` of the train loader is the largest number of samples of one pass. ``seed``: that
    of the order of the samples; the default is the one of ``seed_everything``, or 0. ``state``:
    more entries for ``rh.join(state=...)``. ``join``: more options of ``rh.join``, such as
    ``{"checkpoint_dir": "run"}`` for a process alone. ``ddp``: options of PyTorch's DDP, such as
    ``{"find_unused_parameters": True}``. ``patience``: seconds for which the workers wait for one
    that evaluates or saves.

    ``job`` is the job from the beginning of ``fit`` on. What a job cannot follow raises a
    :class:`~roundhouse.errors.ConfigError` when ``fit`` begins.
    """

    strategy_name = "roundhouse"

    def __init__(
        self,
        global_batch_size: int,
        *,
        seed: int | None = None,
        state: dict[str, Any] | None = None,
        join: dict[str, Any] | None = None,
        ddp: dict[str, Any] | None = None,
        patience: float = 1800.0,
        **options: Any,
    ):
        super().__init__(**options)
        self._global_batch_size, self._seed = global_batch_size, seed
        self._more_state, self._join_options, self._ddp_options = state or {}, join or {}, ddp or {}
        self._patience = patience
        # The Trainer sets these, as it finds the attributes.
        self.parallel_devices: Any = None
        self.num_nodes = 1
        self._layer_sync: Any = None
        self.job: Job | None = None
        self._first = _First(self)
        self._forget()
        if internals.IS_WORKER:
            # Until the rank is known, no worker logs.
            self.global_rank = 1
            internals.set_rank(1)

    def _forget(self) -> None:
        """Must be called before and after a training."""
        self._plan: Plan | None = None
        self._steps: Steps | None = None
        # The batch of the current pass. None: the loop has it.
        self._part: Any = None
        # What the loss of the current pass is multiplied by.
        self._factor = 1.0
        # The loss of the last pass.
        self._loss: torch.Tensor | None = None
        self._is_passing = False
        # Whether the loop has got a step, which is not committed.
        self._is_open = False
        self._is_closed = self._has_failed = False
        # To undo at the end, and before the next step.
        self._changes, self._missed = contextlib.ExitStack(), contextlib.ExitStack()

    @property
    def root_device(self) -> torch.device:
        return internals.device_of(self.accelerator, self.parallel_devices)

    @property
    def is_global_zero(self) -> bool:
        return bool(self.global_rank == 0)

    # The training as a whole.

    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **kwargs: Any) -> Any:
        if self.lightning_module.trainer.state.fn == TrainerFn.FITTING:
            refusals.refuse_checkpoint(checkpoint_path)
        return super().load_checkpoint(checkpoint_path, *args, **kwargs)

    def connect(self, model: Any) -> None:
        self._forget()
        super().connect(model)

    def setup(self, trainer: Any) -> None:
        if trainer.state.fn != TrainerFn.FITTING:
            super().setup(trainer)
            return
        internals.check_trainer(trainer)
        refusals.refuse_trainer(trainer, self.parallel_devices, self.num_nodes, self._layer_sync)
        refusals.refuse_module(self.lightning_module, lambda name: is_overridden(name, self.lightning_module))
        super().setup(trainer)
        refusals.refuse_optimizers(self.optimizers, self.lr_scheduler_configs)
        trainer.fit_loop.setup_data()
        if self._plan is None:
            raise ConfigError("roundhouse.lightning: the module has no training_step, or fit no train data: there is nothing to train")
        self._begin(trainer, self._plan)

    def _begin(self, trainer: Any, plan: Plan) -> None:
        """Joins the job and meets the others, so that the number of committed steps is known."""
        module, optimizer = self.lightning_module, self.optimizers[0]
        schedulers = [config.scheduler for config in self.lr_scheduler_configs]
        names = {f"{index}.{callback.state_key}": callback for index, callback in enumerate(trainer.callbacks)}
        self._states = CallbackStates([(name, one) for name, one in names.items() if is_overridden("state_dict", one)], trainer)
        state = {"model": module, "optimizer": optimizer, "callbacks": self._states}
        state |= {f"scheduler{index}": scheduler for index, scheduler in enumerate(schedulers)}
        self.job = job = join_once({**state, **self._more_state}, self._join_options, "fit()")
        job.__enter__()
        job.on_generation(lambda _: self._enter_generation(trainer))
        self.model = job.model(module, **self._ddp_options)
        options = options_of(plan.loader)
        options["collate_fn"] = Parts(plan.loader.collate_fn, plan.batch_size)
        self._steps = Steps(job, job.steps(plan.loader.dataset, plan.sampler, **options), plan.steps)
        self._pause = Pause(job, self._patience)
        metrics = internals.metrics_of(module)
        internals.compute_apart(metrics)
        self._logs = TrainingLogs(trainer, metrics, job)
        self._change(trainer)
        is_due = self._steps.meet()
        self._count_epochs(trainer, plan, is_due=is_due)
        internals.show_progress(trainer, self.is_global_zero)

    def _count_epochs(self, trainer: Any, plan: Plan, *, is_due: bool) -> None:
        assert self.job is not None
        done = self.job.steps_done
        epochs = done // plan.steps_per_epoch
        if not is_due:
            epochs = max(epochs, trainer.max_epochs or 0)
        internals.count_epochs(trainer, epochs, done)

    def _change(self, trainer: Any) -> None:
        """What the Trainer must not do itself, until the end of the training."""
        undo = self._changes.callback
        trainer.callbacks.insert(0, self._first)
        undo(lambda: trainer.callbacks.remove(self._first))
        self._due = [(config.scheduler, config.interval, config.frequency) for config in self.lr_scheduler_configs]
        for config in self.lr_scheduler_configs:
            undo(setattr, config, "scheduler", config.scheduler)
            config.scheduler = Stepped(config.scheduler)
        # The commit clips by the norm. What clips otherwise runs before it, with the gradients of
        # all workers.
        self._most: float | None = None
        algorithm = str(getattr(trainer.gradient_clip_algorithm, "value", trainer.gradient_clip_algorithm or "norm"))
        if algorithm == "norm" and trainer.gradient_clip_val and not is_overridden("configure_gradient_clipping", self.lightning_module):
            self._most = float(trainer.gradient_clip_val)
            undo(setattr, trainer, "gradient_clip_val", trainer.gradient_clip_val)
            trainer.gradient_clip_val = None
        if internals.IS_WORKER:
            internals.keep_signal_handlers(trainer)
            # A worker that joins later would check while the others train.
            undo(setattr, trainer, "num_sanity_val_steps", trainer.num_sanity_val_steps)
            trainer.num_sanity_val_steps = 0

    def _enter_generation(self, trainer: Any) -> None:
        assert self.job is not None
        self.global_rank = self.job.rank
        internals.set_rank(self.job.rank)
        self._states.take(self.job)
        internals.show_progress(trainer, self.is_global_zero)

    def _leave(self, trainer: Any) -> None:
        """Completes the training with all ranks."""
        if self._steps is not None:
            self._end_pause()
            self._steps.leave(lambda: bool(trainer.should_stop))
            self._steps = None

    def on_exception(self, exception: BaseException) -> None:
        self._has_failed = True
        self._close(exception)
        super().on_exception(exception)

    def teardown(self) -> None:
        module = self.lightning_module
        if self._steps is not None and module is not None and not self._has_failed:
            self._leave(module.trainer)  # No step was due.
        self._close(None)
        super().teardown()

    def _close(self, error: BaseException | None) -> None:
        self._missed.close()
        self._changes.close()
        job, self._steps, self._plan = self.job, None, None
        if job is not None and not self._is_closed:
            self._is_closed = True
            self.model = self.lightning_module
            job.__exit__(None if error is None else type(error), error, None if error is None else error.__traceback__)

    # The steps.

    def process_dataloader(self, dataloader: Any) -> Any:
        trainer = self.lightning_module.trainer
        if not trainer.training:
            refusals.refuse_evaluation_loader(dataloader)
            return super().process_dataloader(dataloader)
        if self._plan is not None:
            raise ConfigError("roundhouse.lightning: several train loaders: the samples of a step come from one; join the data sets")
        refusals.refuse_loader(dataloader)
        epochs = -1 if trainer.max_epochs is None else trainer.max_epochs
        self._plan = plan = plan_of(dataloader, self._global_batch_size, epochs=epochs, steps=trainer.max_steps, seed=self._seed)
        return Epochs(
            dataloader.dataset,
            plan.steps_per_epoch,
            self._known_steps,
            begin=lambda batch: self._begin_step(trainer, plan, batch),
            end=lambda: self._end_step(trainer),
            miss=lambda: self._skip_epochs(trainer, plan),
        )

    def _known_steps(self) -> Steps:
        assert self._steps is not None
        return self._steps

    def _begin_step(self, trainer: Any, plan: Plan, batch: Batch) -> Any:
        self._is_open = True
        internals.count(trainer, batch.step, plan.steps_per_epoch)
        return batch.data[0]

    def _end_step(self, trainer: Any) -> bool:
        """Must be called before the next step. Returns whether rank 0 has stopped the training."""
        if self._is_open:
            raise ConfigError(
                "roundhouse.lightning: a step was skipped, such as by on_train_batch_start with -1 or an optimizer_step that does not "
                "call optimizer.step(closure=...): all workers have to make it; return a loss of zero, or train with fewer samples"
            )
        self._missed.close()
        self._end_pause()
        return bool(trainer.should_stop and trainer.fit_loop._can_stop_early)

    def _skip_epochs(self, trainer: Any, plan: Plan) -> None:
        """Must be called in an epoch whose rest this rank has missed."""
        assert self._steps is not None and self.job is not None
        ahead = self._steps.ahead
        if ahead is not None:
            internals.skip_epochs(trainer, ahead.step.epoch)
            return
        internals.skip_epochs(trainer, max(trainer.max_epochs, 1))
        internals.count_steps(trainer, self.job.steps_done)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        if self._part is not None:
            args = (self._part, *args[1:])
        return super().training_step(*args, **kwargs)

    def backward(self, closure_loss: torch.Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._loss = closure_loss.detach()
        if self._factor != 1.0:
            closure_loss = closure_loss * self._factor
        return super().backward(closure_loss, optimizer, *args, **kwargs)

    def optimizer_step(self, optimizer: Any, closure: Any, model: Any = None, **kwargs: Any) -> Any:
        if self._steps is None or self.job is None:
            return super().optimizer_step(optimizer, closure, model, **kwargs)
        job, trainer = self.job, self.lightning_module.trainer
        is_first = True

        def attempt(batch: Batch) -> bool:
            nonlocal is_first
            self._logs.begin()
            loss = self._passes(trainer, batch, optimizer, closure, is_first=is_first)
            is_first = False
            return job.commit(loss, optimizer, self._due_schedulers(batch.step), max_grad_norm=self._most)

        self._is_passing = True
        is_committed = self._steps.run(attempt)
        self._is_passing = self._is_open = False
        self._part = None
        if is_committed:
            assert self._steps.batch is not None and job.loss is not None
            self._logs.commit(self._steps.batch.step)
            internals.set_loss(closure, job.loss)
        else:
            self._logs.drop()
            self._miss(trainer)
        return self._loss

    def _passes(self, trainer: Any, batch: Batch, optimizer: Any, closure: Any, *, is_first: bool) -> torch.Tensor:
        """Computes the gradients of this rank's share. Returns the mean of its losses."""
        sizes = part_sizes(batch.step.size, self._plan_of_now().batch_size)
        total = torch.zeros((), dtype=torch.float64, device=self.root_device)
        for index, (part, size) in enumerate(zip(batch.data, sizes)):
            # The loop has moved the first part.
            self._part = None if is_first and index == 0 else internals.moved(trainer, part)
            if self._part is not None:
                internals.log_for(trainer, self._part)
            self._factor = size / max(batch.step.size, 1)
            self._loss = None
            self._logs.begin_pass()
            is_last = index == len(sizes) - 1
            with contextlib.nullcontext() if is_last else self.model.no_sync(), internals.without_zero_grad(optimizer):
                if is_last:
                    internals.call_last(self.precision_plugin, self.lightning_module, optimizer, closure)
                else:
                    closure()
            if self._loss is None:
                raise ConfigError(
                    "roundhouse.lightning: training_step has returned no loss: all workers have to make a step; return a loss of zero, "
                    "such as 0 * loss"
                )
            self._logs.end_pass(self._loss, size)
            total += self._loss * self._factor
        return total

    def _plan_of_now(self) -> Plan:
        assert self._plan is not None
        return self._plan

    def _due_schedulers(self, step: Step) -> list[Any]:
        """The schedulers that the commit of a step calls."""
        return [
            scheduler
            for scheduler, interval, frequency in self._due
            if interval == "step" or (step.ends_epoch and (step.epoch + 1) % frequency == 0)
        ]

    def all_gather(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self._is_passing:
            raise ConfigError(
                "roundhouse.lightning: all_gather in training_step: its result, and so the gradient, would depend on the number of "
                "workers; compute the loss from the samples of the batch alone"
            )
        return super().all_gather(tensor, *args, **kwargs)

    # Between two steps.

    def _miss(self, trainer: Any) -> None:
        """The other ranks have committed the step without this one, and have done what follows it."""
        self._missed.callback(setattr, trainer, "limit_val_batches", trainer.limit_val_batches)
        trainer.limit_val_batches = 0

    def _begin_pause(self, trainer: Any) -> None:
        if self._steps is not None and not trainer.sanity_checking and not self._steps.is_behind:
            self._pause.begin()

    def _end_epoch(self, trainer: Any) -> None:
        self._begin_pause(trainer)
        if self._steps is not None and not self._steps.is_behind:
            self._logs.end_epoch()

    def _end_pause(self) -> None:
        """All ranks take the decisions of rank 0."""
        if self._pause.end() and self.job is not None:
            with may_lose_peer():
                self._states.take(self.job)

    def _may_save(self, trainer: Any) -> None:
        """Begins a pause in the steps in which a callback saves."""
        steps = [getattr(callback, "_every_n_train_steps", 0) for callback in trainer.checkpoint_callbacks]
        if any(every and trainer.global_step % every == 0 for every in steps):
            self._begin_pause(trainer)

    def _adopt(self, trainer: Any) -> None:
        job, steps = self.job, self._steps
        if job is None or steps is None or steps.is_behind or trainer.sanity_checking or job.world_size == 1:
            return
        with may_lose_peer():
            adopt_evaluation(job, trainer)
