"""All that depends on the inside of transformers and accelerate: the methods of ``Trainer`` that
the elastic one replaces, which are checked when this module is imported.

The library believes that it trains in one process. Its loop gets one batch per step of the job,
which is this rank's share, and calls ``training_step``. There this rank makes the passes of its
share and commits the step with all others; a dropped step is repeated before ``training_step``
returns. The commit has stepped the optimizer and the scheduler, so the loop's own calls do nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

import torch

from ..errors import ConfigError
from ..integration.loaders import batches_of, is_sequential, options_of
from ..integration.parts import Parts, part_sizes
from ..integration.steps import Steps
from ..integration.waiting import may_lose_peer, waits
from ..job import Job
from . import refusals
from .carried import Carried
from .evaluation import BatchLosses, adopt, arguments_of_evaluation
from .plan import plan_of
from .random_numbers import same_random_numbers
from .stand_ins import Epochs, Stepped
from .starting import join_once, warn_of_no_step, without_launcher
from .trackers import restart_trackers
from .weighing import Weighing, nothing

_SUPPORTED = "transformers 5.5 and newer, tested with 5.24.0"
try:
    import transformers
    from accelerate import PartialState
    from transformers.trainer_callback import ExportableState
    from transformers.trainer_utils import EvalLoopOutput
except ImportError as error:
    raise ConfigError(
        f"roundhouse.hf needs transformers and accelerate ({_SUPPORTED}): {error}; pip install 'roundhouse[hf]'"
    ) from error

# Methods of Trainer that are replaced or called here.
_METHODS = """
    _clip_grad_norm _finalize_training _get_grad_norm _get_learning_rate _get_num_items_in_batch _init_training_state
    _inner_training_loop _load_best_model _maybe_log_save_evaluate _prepare_for_training _save_checkpoint
    _save_rng_state create_accelerator_and_postprocess create_optimizer create_scheduler evaluation_loop
    floating_point_ops get_total_train_batch_size get_train_dataloader prediction_step train training_step
""".split()


def check_methods(kind: Any, version: str) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` if a class has not all methods of a supported
    ``Trainer``."""
    missing = [name for name in _METHODS if not hasattr(kind, name)]
    if missing:
        raise ConfigError(
            f"roundhouse.hf supports {_SUPPORTED}; transformers {version} is installed, whose Trainer has no {', '.join(missing)}"
        )


check_methods(transformers.Trainer, transformers.__version__)


_IS_WORKER = bool(os.environ.get("ROUNDHOUSE_MEMBERSHIP_FILE"))
if _IS_WORKER:
    PartialState.__init__ = without_launcher(PartialState.__init__)


class _Progress(transformers.TrainerCallback):
    """Calls ``note`` after each step, before all other callbacks. A training that begins with
    ``stops()`` stops at once."""

    def __init__(self, note: Callable[[], None], stops: Callable[[], bool]):
        self._note, self._stops = note, stops

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # The Trainer has just reset it.
        control.should_training_stop = self._stops()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._note()


if TYPE_CHECKING:
    from transformers import Trainer as Host
else:
    Host = object


class Elastic(Host):
    """Makes a subclass of ``transformers.Trainer`` elastic; it stands before that class among the
    bases.

    ``global_batch_size``: samples of a step over all workers, whatever their number.
    ``per_device_train_batch_size`` of the arguments is the largest number of samples of one pass.
    ``state``: more entries for ``rh.join(state=...)``. ``join``: more options of ``rh.join``, such
    as ``{"checkpoint_dir": "run"}`` for a process alone.

    Raises :class:`~roundhouse.errors.ConfigError` for arguments that a job cannot follow.
    """

    optimizer: Any
    lr_scheduler: Any

    def __init__(
        self,
        *args: Any,
        global_batch_size: int,
        state: dict[str, Any] | None = None,
        join: dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        refusals.refuse_overrides(type(self), Elastic)
        self._global_batch_size = global_batch_size
        self._more_state, self._join_options = state or {}, join or {}
        self.job: Job | None = None
        # Known while the loop of the training runs.
        self._steps: Steps | None = None
        # Whether the others have stopped the training before this worker joined.
        self._begins_stopped = False
        # Whether the passes of a step are running.
        self._is_passing = False
        # Learning rate of the current step.
        self._rate: float | None = None
        super().__init__(*args, **kwargs)
        # The loop does not know the number of the step in a worker that joins later.
        self.callback_handler.callbacks.insert(0, _Progress(self._note_progress, lambda: self._begins_stopped))

    def create_accelerator_and_postprocess(self) -> None:
        refusals.refuse_arguments(self.args)
        if _IS_WORKER and self.args.device.type == "cuda":
            # Other GPUs belong to other processes of this worker.
            device = torch.device("cuda", PartialState().local_process_index)
            torch.cuda.set_device(device)
            self.args._setup_devices = device
        if self.args.n_gpu > 1:
            self.args._n_gpu = 1
        super().create_accelerator_and_postprocess()
        refusals.refuse_launcher(self.accelerator.num_processes > 1 or self.is_deepspeed_enabled or self.is_fsdp_enabled)

    def get_total_train_batch_size(self, args: Any) -> int:
        return self._global_batch_size

    # The training as a whole.

    def train(self, resume_from_checkpoint: Any = None, trial: Any = None, *args: Any, **kwargs: Any) -> Any:
        refusals.refuse_call(resume_from_checkpoint, trial)
        refusals.refuse_arguments(self.args)
        if self.args.label_smoothing_factor and not hasattr(self, "_loss_shifts_labels"):
            raise ConfigError("roundhouse.hf: label_smoothing_factor needs transformers 5.16 or newer: older ones miscount its tokens")
        refusals.refuse_scheduler(self.lr_scheduler)
        refusals.refuse_callbacks(self.callback_handler.callbacks, transformers.TrainerCallback)
        return super().train(None, None, *args, **kwargs)

    def hyperparameter_search(self, *_: Any, **__: Any) -> Any:
        refusals.refuse_call(None, "any")

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
        loader = super().get_train_dataloader()
        refusals.refuse_dataset(self.train_dataset, loader)
        self._plan = plan = plan_of(self.args, loader, self._global_batch_size)
        if self._created_lr_scheduler:
            self.lr_scheduler = None  # An earlier training had other steps.
        # A subclass may return nothing from these.
        self.create_optimizer()
        self.create_scheduler(num_training_steps=plan.steps)
        self._own = own = self.optimizer, self.lr_scheduler
        # An earlier training had other numbers.
        self.state.best_metric = self.state.best_global_step = None
        self.control.should_training_stop = False
        exportable = [one for one in self.callback_handler.callbacks if isinstance(one, ExportableState)]
        self._carried = Carried(lambda: self.state, lambda: self.control, exportable)
        is_exact = not self.args.bf16 and all(weight.element_size() >= 4 for weight in self.model.parameters())
        self._weighing = Weighing(self._loss_of, shifts=getattr(self, "_loss_shifts_labels", False), is_exact=is_exact)
        state = {"model": self.model, "optimizer": own[0], "scheduler": own[1], "trainer": self._carried, **self._more_state}
        with join_once(state, self._join_options) as self.job:
            self.job.on_generation(self._enter_generation)
            options = options_of(loader)
            options["collate_fn"] = Parts(loader.collate_fn, self.args.per_device_train_batch_size)
            self._steps = Steps(self.job, self.job.steps(loader.dataset, plan.sampler, **options), plan.steps)
            self._epochs = Epochs(self._steps, loader.dataset, plan.steps_per_epoch)
            self._is_due = self._steps.meet()
            try:
                return super()._inner_training_loop(*args, **kwargs)
            finally:
                self._steps = self._rate = None
                self.accelerator.__dict__.pop("backward", None)
                self.optimizer, self.lr_scheduler = own

    def _enter_generation(self, job: Job) -> None:
        if job.rank == 0 and not self.state.is_world_process_zero:
            restart_trackers(self.callback_handler.callbacks)
        # Trainer saves and reports where these are 0.
        PartialState().process_index = job.rank
        self.state.is_world_process_zero = job.rank == 0
        # Devices may round an evaluation differently: all ranks take the numbers of rank 0.
        numbers = self._carried.numbers()
        self._carried.load(job.sum(numbers if job.rank == 0 else [0.0] * len(numbers)))

    def get_train_dataloader(self) -> Any:
        return super().get_train_dataloader() if self._steps is None else self._epochs

    def _init_training_state(self, max_steps: int, steps_per_epoch: int, num_epochs: int, *others: Any) -> tuple[int, int]:
        carried = self._carried.numbers()
        super()._init_training_state(max_steps, steps_per_epoch, num_epochs, *others)
        self._carried.load(carried)
        self.state.best_model_checkpoint = self._best_model()
        self._note_progress()
        # Where no step is due, no epoch begins.
        self._begins_stopped = self.control.should_training_stop
        begins = self._is_due and not self._begins_stopped
        if not (begins or _IS_WORKER):
            warn_of_no_step(self._join_options)
        return (self.state.global_step // steps_per_epoch if begins else num_epochs), 0

    def _note_progress(self) -> None:
        if self.job is not None:
            self.state.global_step = self.job.steps_done
            self.state.epoch = self.state.global_step / self._plan.steps_per_epoch

    def _prepare_for_training(self, max_steps: int, loader: Any, *_: Any) -> tuple[Any, Any]:
        assert self.job is not None
        options = self.accelerator.ddp_handler.to_kwargs()
        options.pop("broadcast_buffers", None)  # The commit broadcasts them.
        self._net = self.job.model(self.accelerator.prepare_model(self.model), **options)
        # Trainer asks what kind of model is in the wrapper.
        unwrap = type(self.accelerator).unwrap_model
        self.accelerator.unwrap_model = lambda model, *args, **kwargs: unwrap(
            self.accelerator, model.module if model is self._net else model, *args, **kwargs
        )
        self.accelerator.backward = self._backward
        self.model_wrapped = self._net
        self.optimizer, self.lr_scheduler = (Stepped(one, lambda: self._is_passing) for one in self._own)
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))
        self.callback_handler.train_dataloader = loader
        return self._net, loader

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        assert self._steps is not None
        self._steps.leave(lambda: self.control.should_training_stop)
        self._steps = None  # Each process does alone what follows.
        return super()._finalize_training(*args, **kwargs)

    def _load_best_model(self) -> None:
        # If rank 0 was lost in the last evaluation, there is no export of the best model, which is
        # the current one.
        if not (self.state.best_global_step == self.state.global_step and self._best_model() is None):
            super()._load_best_model()

    def _best_model(self) -> str | None:
        best = os.path.join(self.args.output_dir, f"checkpoint-{self.state.best_global_step}")
        return best if os.path.isdir(best) else None

    # One step.

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        if self._steps is None or self.job is None:
            return super().training_step(model, inputs, num_items_in_batch)
        job, (optimizer, scheduler) = self.job, self._own
        self._rate = super()._get_learning_rate()
        most = self.args.max_grad_norm if self.args.max_grad_norm > 0 else None
        self._skip_missed()

        def attempt(batch: Any) -> bool:
            loss, weight = self._passes(batch)
            return job.commit(loss, optimizer, scheduler, max_grad_norm=most, weight=weight)

        self._is_passing = True
        is_committed = self._steps.run(attempt)
        self._is_passing = False
        if not is_committed:
            self._skip_missed()
        return torch.tensor(job.loss if is_committed else 0.0, device=self.args.device)

    def _skip_missed(self) -> None:
        """Steps that the other ranks have committed without this one do not count in the mean of
        its next log."""
        assert self.job is not None
        self._globalstep_last_logged += self.job.steps_done - self.state.global_step

    def _passes(self, batch: Any) -> tuple[Any, Any]:
        """Computes the gradients of this rank's share. Returns the sum of its losses and their
        weight."""
        sizes = part_sizes(batch.step.size, self.args.per_device_train_batch_size)
        total, weight = torch.zeros((), dtype=torch.float64, device=self.args.device), 0.0
        for index, (part, size) in enumerate(zip(batch.data, sizes)):
            items = self._get_num_items_in_batch([part], self.args.device)
            counted = self._weighing.weight(part, size, items)
            self._factor = counted.factor
            self.current_gradient_accumulation_steps = 1
            self._has_passed = False
            with contextlib.nullcontext() if index == len(sizes) - 1 else self._net.no_sync():
                loss = super().training_step(self._net, part, counted.divisor)
            refusals.refuse_own_backward(type(self), self._has_passed)
            if self._factor:  # The mean over no labels is not a number.
                total += loss * self._factor
            weight += counted.items
        return total, weight

    def _backward(self, loss: Any, **options: Any) -> None:
        self._has_passed = True
        loss = loss * self._factor if self._factor else nothing(self._net)
        type(self.accelerator).backward(self.accelerator, loss, **options)

    def _loss_of(self, inputs: Any, number: Any, seed: int = 0) -> float:
        """The loss of a pass without gradients, for a number of items."""
        self.model.eval()
        with torch.no_grad(), same_random_numbers(self.args.device, seed), self.compute_loss_context_manager():
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
        own = sum(super(Elastic, self).floating_point_ops(part) for part in inputs)
        step = self._steps.batch.step
        return own * step.global_size / max(step.size, 1)

    # What follows a step.

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        if self._steps is not None and self._steps.is_behind:
            # The other ranks have done it already, and this one got their numbers.
            self.control.should_evaluate = self.control.should_save = False
        refusals.refuse_end_of_epoch(self.control)
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _waits(self) -> Any:
        return waits(None if self._steps is None else self.job, float(self.args.ddp_timeout))

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        with self._waits():
            super()._save_checkpoint(*args, **kwargs)

    def _save_rng_state(self, output_dir: str) -> None:
        # It makes the directory also where rank 0 alone writes.
        if self.args.should_save:
            super()._save_rng_state(output_dir)

    def evaluation_loop(self, dataloader: Any, description: str, *args: Any, **kwargs: Any) -> Any:
        if self._steps is None or self.job is None:
            return super().evaluation_loop(dataloader, description, *args, **kwargs)
        only_loss, ignored, prefix = arguments_of_evaluation(*args, **kwargs)
        if (self.args.prediction_loss_only if only_loss is None else only_loss) and is_sequential(dataloader):
            return self._losses(self.job, dataloader, ignored, prefix)
        output: Any = None
        with self._waits():
            # Metrics need all predictions, so each rank computes all of them.
            output = super().evaluation_loop(dataloader, description, *args, **kwargs)
        with may_lose_peer():
            adopt(output.metrics, self.job.rank, self.job.sum)
        return output

    def _losses(self, job: Job, dataloader: Any, ignored: Any, prefix: str) -> Any:
        """The loss of an evaluation set. Each rank computes a part of its batches."""
        batches = list(dataloader.batch_sampler)
        losses = BatchLosses(len(batches))

        def compute(indices: range) -> None:
            with closing(batches_of(dataloader, [batches[index] for index in indices])) as loaded:
                for index, inputs in zip(indices, loaded):
                    loss, _, _ = self.prediction_step(self.model, inputs, True, ignore_keys=ignored)
                    losses.add(index, None if loss is None else float(loss), len(batches[index]))
                    self.callback_handler.on_prediction_step(self.args, self.state, self.control)

        self.model.eval()
        self.callback_handler.eval_dataloader = dataloader
        with self._waits():
            compute(losses.part(job.rank, job.world_size))
        with may_lose_peer():
            losses.share(job.sum)
        for rest in losses.missing():
            compute(rest)  # A rank was lost, so this one computes the batches of all.
        loss = losses.mean(skips_infinite=self.args.logging_nan_inf_filter)
        metrics = {} if loss is None else {f"{prefix}_loss": loss}
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=len(dataloader.dataset))


class Trainer(Elastic, transformers.Trainer):
    """``transformers.Trainer``, elastic: see :class:`Elastic`."""
