"""The strategy of ``lightning.Trainer``."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden

from ..data import Batch
from ..errors import ConfigError
from ..integration.afterwards import Afterwards, write
from ..integration.parts import part_sizes
from ..job import Job
from . import internals, refusals
from .plan import Plan, plan_of
from .stand_ins import Epochs
from .training import Training
from .validation import BatchStandIn


class Elastic(SingleDeviceStrategy):
    """Makes a Trainer elastic: ``Trainer(strategy=Elastic(global_batch_size=256))``.

    ``global_batch_size``: samples of a step over all workers, whatever their number. The
    ``batch_size`` of the train loader is the largest number of samples of one pass. ``seed``: that
    of the order of the samples; the default is the one of ``seed_everything``, or 0. ``state``:
    more entries for ``rh.join(state=...)``. ``join``: more options of ``rh.join``, such as
    ``{"checkpoint_dir": "run"}`` for a process alone. ``ddp``: options of PyTorch's DDP, such as
    ``{"find_unused_parameters": True}``. ``patience``: seconds for which the workers wait for one
    that evaluates or saves. ``divide_validation``: whether each worker runs ``validation_step`` for
    a part of the batches. Then ``validation_step`` must only compute and call ``self.log``.

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
        divide_validation: bool = False,
        **options: Any,
    ):
        super().__init__(**options)
        self._global_batch_size, self._seed = global_batch_size, seed
        self._more_state, self._join_options, self._ddp_options = state or {}, join or {}, ddp or {}
        self._patience, self._divides = patience, divide_validation
        # The Trainer sets these, as it finds the attributes.
        self.parallel_devices: Any = None
        self.num_nodes = 1
        self._layer_sync: Any = None
        self.job: Job | None = None
        # Known after the training of a worker.
        self._afterwards: Afterwards | None = None
        self._forget()
        if internals.IS_WORKER:
            # Until the rank is known, no worker logs.
            self.global_rank = 1
            internals.set_rank(1)

    def _forget(self) -> None:
        """Must be called before a training."""
        self._plan: Plan | None = None
        self._training: Training | None = None
        # The batch of the current pass. None: the loop has it.
        self._part: Any = None
        # What the loss of the current pass is multiplied by.
        self._factor = 1.0
        # The loss of the last pass.
        self._loss: torch.Tensor | None = None
        self._is_passing = False

    @property
    def root_device(self) -> torch.device:
        return internals.device_of(self.accelerator, self.parallel_devices)

    @property
    def is_global_zero(self) -> bool:
        return bool(self.global_rank == 0)

    # The training as a whole.

    def connect(self, model: Any) -> None:
        self._forget()
        super().connect(model)

    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **kwargs: Any) -> Any:
        if self.lightning_module.trainer.state.fn == TrainerFn.FITTING:
            refusals.refuse_checkpoint(checkpoint_path)
        return super().load_checkpoint(checkpoint_path, *args, **kwargs)

    def setup(self, trainer: Any) -> None:
        if trainer.state.fn != TrainerFn.FITTING:
            super().setup(trainer)
            return
        internals.check_trainer(trainer)
        if (path := internals.asked_checkpoint()) is not None:
            refusals.refuse_checkpoint(path)
        refusals.refuse_trainer(trainer, self.parallel_devices, self.num_nodes, self._layer_sync)
        refusals.refuse_module(self.lightning_module, lambda name: is_overridden(name, self.lightning_module))
        super().setup(trainer)
        refusals.refuse_optimizers(self.optimizers, self.lr_scheduler_configs)
        trainer.fit_loop.setup_data()
        if self._plan is None:
            raise ConfigError(
                "roundhouse.lightning: the module has no training_step, or fit no train data: there is nothing to train"
            )
        training = Training(
            trainer,
            self._plan,
            state=self._more_state,
            options=self._join_options,
            patience=self._patience,
            divides=self._divides,
        )
        self._training, self.job = training, training.job
        self.model = training.begin(self._ddp_options)

    def process_dataloader(self, dataloader: Any) -> Any:
        trainer = self.lightning_module.trainer
        if not trainer.training:
            refusals.refuse_evaluation_loader(dataloader)
            return super().process_dataloader(dataloader)
        if self._plan is not None:
            raise ConfigError(
                "roundhouse.lightning: several train loaders: the samples of a step come from one; join the data sets"
            )
        refusals.refuse_loader(dataloader)
        epochs = -1 if trainer.max_epochs is None else trainer.max_epochs
        self._plan = plan = plan_of(
            dataloader, self._global_batch_size, epochs=epochs, steps=trainer.max_steps, seed=self._seed
        )
        return Epochs(dataloader.dataset, plan.steps_per_epoch, self._known_training)

    def _known_training(self) -> Training:
        assert self._training is not None
        return self._training

    def on_exception(self, exception: BaseException) -> None:
        self._close(exception)
        super().on_exception(exception)

    def teardown(self) -> None:
        if self._training is not None:
            self._training.leave()  # Where no step was due, the loop has not begun.
        self._close(None)
        super().teardown()
        if self._afterwards is not None and self.root_device.type != "cpu":
            self._afterwards.note()  # The module has moved to the memory of the host.

    def _close(self, error: BaseException | None) -> None:
        training, self._training = self._training, None
        if training is not None:
            self.model = self.lightning_module
            training.close(error)
            self._afterwards = training.afterwards if error is None else None

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Writes a checkpoint on rank 0. After ``fit`` it returns on all ranks when the file is
        complete: if rank 0 is lost meanwhile, another rank writes it."""
        save = super().save_checkpoint
        write(self._afterwards, filepath, lambda: save(checkpoint, filepath, *args, **kwargs))

    # One step.

    def optimizer_step(self, optimizer: Any, closure: Any, model: Any = None, **kwargs: Any) -> Any:
        training = self._training
        if training is None:
            return super().optimizer_step(optimizer, closure, model, **kwargs)
        if self._is_passing:
            raise ConfigError(
                "roundhouse.lightning: optimizer.step() in training_step: the job steps the optimizer once; leave it out"
            )
        job = training.job
        is_first = True

        def attempt(batch: Batch) -> bool:
            nonlocal is_first
            training.logs.begin()
            loss = self._passes(training, batch, optimizer, closure, is_first=is_first)
            is_first = False
            return job.commit(loss, optimizer, training.due_schedulers(batch.step), max_grad_norm=training.max_norm)

        self._is_passing = True
        is_committed = training.steps.run(attempt)
        self._is_passing, self._part = False, None
        if is_committed:
            training.commit()
            assert job.loss is not None
            internals.set_loss(closure, job.loss)
        else:
            training.miss()
        return self._loss

    def _passes(self, training: Training, batch: Batch, optimizer: Any, closure: Any, *, is_first: bool) -> torch.Tensor:
        """Computes the gradients of this rank's share. Returns the mean of its losses."""
        trainer, sizes = self.lightning_module.trainer, part_sizes(batch.step.size, training.plan.batch_size)
        total = torch.zeros((), dtype=torch.float64, device=self.root_device)
        for index, (part, size) in enumerate(zip(batch.data, sizes)):
            # The loop has moved the first part.
            self._part = None if is_first and index == 0 else internals.moved(trainer, part)
            if self._part is not None:
                internals.log_for(trainer, self._part)
            self._factor = size / max(batch.step.size, 1)
            self._loss = None
            training.logs.begin_pass()
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
            training.logs.end_pass(self._loss, size)
            total += self._loss * self._factor
        return total

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        if self._part is not None:
            args = (self._part, *args[1:])
        return super().training_step(*args, **kwargs)

    def backward(self, closure_loss: torch.Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        self._loss = closure_loss.detach()
        if self._factor != 1.0:
            closure_loss = closure_loss * self._factor
        return super().backward(closure_loss, optimizer, *args, **kwargs)

    # A validation that the ranks divide.

    def batch_to_device(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        return batch if isinstance(batch, BatchStandIn) else super().batch_to_device(batch, *args, **kwargs)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], BatchStandIn):
            return args[0].log(self.lightning_module)
        return super().validation_step(*args, **kwargs)

    def all_gather(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self._is_passing:
            raise ConfigError(
                "roundhouse.lightning: all_gather in training_step: its result, and so the gradient, would depend on the number of "
                "workers; compute the loss from the samples of the batch alone"
            )
        return super().all_gather(tensor, *args, **kwargs)
