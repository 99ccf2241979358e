"""The methods of ``transformers.Trainer`` that the elastic one replaces, which are checked when
this module is imported.

The library believes that it trains in one process. Its loop gets one batch per step of the job,
which is this rank's share, and calls ``training_step``. There this rank makes the passes of its
share and commits the step with all others; a dropped step is repeated before ``training_step``
returns. The commit has stepped the optimizer and the scheduler, so the loop's own calls do nothing.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import transformers
from transformers.trainer_callback import ExportableState

from ...errors import ConfigError
from ...integration.afterwards import Afterwards, stays_member
from ...integration.loaders import options_of
from ...integration.parts import Parts
from ...integration.steps import Steps
from ...job import Job
from ...replica import current
from ...sharded import check_sharding, reshard
from .. import refusals
from ..carried import Carried, Exported
from ..plan import plan_of
from ..stand_ins import Epochs, Stepped
from ..starting import join_once, warn_of_no_step
from ..trackers import begin_bars, name_run, restart_trackers
from ..weighing import Weighing
from ..whole_tensors import loads_whole_tensors
from .between_steps import BetweenSteps
from .evaluations import Evaluations
from .libraries import IS_WORKER, check_methods, own_gpu, set_rank, take_rank
from .one_step import OneStep
from .whole_files import WholeFiles

# Methods of Trainer that are replaced or called here and in its parts.
METHODS = """
    _clip_grad_norm _finalize_training _get_grad_norm _get_learning_rate _get_num_items_in_batch _init_training_state
    _inner_training_loop _load_best_model _maybe_log_save_evaluate _prepare_for_training _save_checkpoint
    _save _save_optimizer_and_scheduler _save_rng_state create_accelerator_and_postprocess create_optimizer
    create_scheduler evaluation_loop floating_point_ops get_total_train_batch_size get_train_dataloader prediction_step save_model save_state train training_step
""".split()

check_methods(transformers.Trainer, METHODS, f"transformers {transformers.__version__}")


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


class Elastic(OneStep, Evaluations, BetweenSteps, WholeFiles):
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
        global_batch_size: int | None = None,
        state: dict[str, Any] | None = None,
        join: dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        refusals.refuse_overrides(type(self), Elastic, (OneStep, Evaluations, BetweenSteps))
        self._global_batch_size = refusals.known_batch_size(global_batch_size)
        self._more_state, self._join_options = state or {}, join or {}
        self.job: Job | None = None
        self._steps: Steps | None = None
        # Whether the others have stopped the training before this worker joined.
        self._begins_stopped = False
        # Whether the ranks have left the loop.
        self._has_left = False
        super().__init__(*args, **kwargs)
        # The loop does not know the number of the step in a worker that joins later.
        self.callback_handler.callbacks.insert(0, _Progress(self._note_progress, lambda: self._begins_stopped))

    def create_accelerator_and_postprocess(self) -> None:
        refusals.refuse_arguments(self.args)
        if (device := own_gpu(self.args.device)) is not self.args.device:
            self.args._setup_devices = device
        if self.args.n_gpu > 1:
            self.args._n_gpu = 1
        super().create_accelerator_and_postprocess()
        refusals.refuse_launcher(self.accelerator.num_processes > 1 or self.is_deepspeed_enabled or self.is_fsdp_enabled)
        if (replica := current()) is not None:
            refusals.refuse_replica(replica, self.model, self.args.device)
            set_rank(replica.shard)  # The ranks of the job are known in train().

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
        # FSDP2 may have whole parameters of an evaluation in the place of the sharded ones.
        reshard([self.model])
        if (replica := current()) is not None:
            check_sharding(self.model, replica)
        # A subclass may return nothing from these.
        self.create_optimizer()
        self.create_scheduler(num_training_steps=plan.steps)
        self._own = own = self.optimizer, self.lr_scheduler
        # An earlier training had other numbers.
        self.state.best_metric = self.state.best_global_step = None
        self.control.should_training_stop = self._has_left = False
        exportable = [one for one in self.callback_handler.callbacks if isinstance(one, ExportableState)]
        self._exported, self._meetings = Exported(), Counter()
        self._carried = Carried(lambda: self.state, lambda: self.control, exportable, self._exported)
        is_exact = not self.args.bf16 and all(weight.element_size() >= 4 for weight in self.model.parameters())
        shifts = getattr(self, "_loss_shifts_labels", False)
        self._weighing = Weighing(self._loss_of, shifts=shifts, is_exact=is_exact, replica=replica)
        state = {"model": self.model, "optimizer": own[0], "scheduler": own[1], "trainer": self._carried, **self._more_state}
        with contextlib.ExitStack() as membership:
            self.job = membership.enter_context(join_once(state, self._join_options))
            if IS_WORKER:
                name_run(self.job.run_id)
            self.job.on_generation(self._enter_generation)
            options = options_of(loader)
            options["collate_fn"] = Parts(loader.collate_fn, self.args.per_device_train_batch_size)
            self._steps = Steps(self.job, self.job.steps(loader.dataset, plan.sampler, **options), plan.steps)
            self._epochs = Epochs(self._steps, loader.dataset, plan.steps_per_epoch)
            self._is_due = self._steps.meet()
            try:
                output = super()._inner_training_loop(*args, **kwargs)
            finally:
                self._steps = self._rate = None
                self.accelerator.__dict__.pop("backward", None)
                self.optimizer, self.lr_scheduler = own
            if self._afterwards is not None:
                membership.pop_all()
                self._afterwards.stay()
            return output

    def _enter_generation(self, job: Job) -> None:
        is_new_first = job.rank == 0 and not self.state.is_world_process_zero
        if is_new_first:
            restart_trackers(self.callback_handler.callbacks)
        take_rank(job)
        self.state.is_world_process_zero = job.rank == 0
        if is_new_first and not self._has_left:
            begin_bars(self.callback_handler.callbacks, self.args, self.state, self.control)
        # Devices may round an evaluation differently: all ranks take the numbers of rank 0.
        numbers = self._carried.numbers()
        is_first = job._generations.data_place[0] == 0
        self._carried.load(job.sum(numbers if is_first else [0.0] * len(numbers)))

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
        if not (begins or IS_WORKER):
            warn_of_no_step(self._join_options)
        return (self.state.global_step // steps_per_epoch if begins else num_epochs), 0

    def _note_progress(self) -> None:
        if self.job is not None:
            self.state.global_step = self.job.steps_done
            self.state.epoch = self.state.global_step / self._plan.steps_per_epoch

    def _prepare_for_training(self, max_steps: int, loader: Any, *_: Any) -> tuple[Any, Any]:
        assert self.job is not None
        options = self.accelerator.ddp_handler.to_kwargs() if current() is None else {}
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
        assert self.job is not None and self._steps is not None
        self._steps.leave(lambda: self.control.should_training_stop)
        self._steps = None  # Each process does alone what follows.
        self._has_left = True
        if stays_member():
            # For all Trainers of the script.
            WholeFiles._afterwards = Afterwards(self.job, self._plan.steps)
        self.state.best_model_checkpoint = self._best_model()
        return super()._finalize_training(*args, **kwargs)

    def _load_best_model(self) -> None:
        # If rank 0 was lost in the last evaluation or while it exported the best model, there is no
        # export of it. It is the current model.
        if self.state.best_global_step == self.state.global_step != self._exported.step:
            return
        with contextlib.nullcontext() if current() is None else loads_whole_tensors(self.model):
            super()._load_best_model()


class Trainer(Elastic, transformers.Trainer):
    """``transformers.Trainer``, elastic: see :class:`Elastic`."""
