"""``accelerate.Accelerator`` for a loop of the script.

The library believes that it trains in one process. ``prepare`` joins the job. Its training loader
yields the passes of this rank's share, and the step of its optimizer commits.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import accelerate
import torch
from accelerate.utils import send_to_device

from ...data import Batch
from ...errors import ConfigError
from ...job import Job
from ...sampler import Sampler
from .. import refusals_of_loop as refusals
from ..loaders import is_sequential, options_of
from ..own_loop import OwnLoop, Stage
from ..passes import Parts
from ..random_numbers import same_random_numbers
from ..starting import Membership, join_once, warn_of_no_step
from ..steps import Steps
from ..waiting import all_begin, waits
from ..weighing import Weighing
from .accelerated import CommittedScheduler, CommittingOptimizer, EvaluationLoader, TrainingLoader
from .libraries import IS_WORKER, check_methods, take_gpu, take_rank

METHODS = """
    accumulate backward check_trigger clip_grad_norm_ clip_grad_value_ end_training gather gather_for_metrics init_trackers
    load_state log on_main_process pad_across_processes prepare prepare_model reduce register_for_checkpointing save_state
    set_trigger skip_first_batches unwrap_model wait_for_everyone
""".split()

check_methods(accelerate.Accelerator, METHODS, f"accelerate {accelerate.__version__}")
_PATIENCE = 1800.0


class Accelerator(accelerate.Accelerator):
    """``accelerate.Accelerator``, elastic.

    A step has ``batch_size`` x ``gradient_accumulation_steps`` samples over all workers, as in one
    process. ``batch_size`` is the largest number of samples of one pass.

    ``epochs`` or ``steps``: length of the training in passes over the data set, or in steps.
    ``num_items``: the number of items of a batch that its loss is the mean of, for a loss that the
    script computes; without it each sample counts the same. ``state``: more entries for
    ``rh.join(state=...)``. ``join``: more options of ``rh.join``, such as
    ``{"checkpoint_dir": "run"}`` for a process alone.

    Raises :class:`~roundhouse.errors.ConfigError` for options that a job cannot follow.
    """

    def __init__(
        self,
        *args: Any,
        epochs: int | None = None,
        steps: int | None = None,
        num_items: Callable[[Any], Any] | None = None,
        state: dict[str, Any] | None = None,
        join: dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        refusals.refuse_length(epochs, steps)
        refusals.refuse_launcher(os.environ)
        refusals.refuse_options(inspect.signature(accelerate.Accelerator).bind(*args, **kwargs).arguments)
        self._length = {"epochs": epochs, "steps": steps}
        self._num_items, self._more_state, self._join_options = num_items, state or {}, join or {}
        self._job: Job | None = None
        # The wait that ends with the next step, if there is one.
        self._wait: Any = None
        self._were_counters_read = self._evaluates = self._has_begun = False
        # Whether the current pass is of a step that this rank has missed.
        self._is_behind = False
        self._trackers_of_script: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        # The loss that the model has returned in its last pass.
        self._own_loss: Any = None
        super().__init__(*args, **kwargs)
        take_gpu()
        self._patience = self.init_handler.timeout.total_seconds() if self.init_handler is not None else _PATIENCE

    # The job.

    @property
    def job(self) -> Job:
        """The job; known after ``prepare``."""
        if self._job is None:
            raise ConfigError("roundhouse.hf: accelerator.job, steps_done or epochs_done before accelerator.prepare, which joins the job")
        return self._job

    @property
    def steps_done(self) -> int:
        """Number of committed steps of the job, with which the counter of the script begins."""
        self._were_counters_read = True
        return self.job.steps_done

    @property
    def epochs_done(self) -> int:
        """Number of complete epochs of the job, with which the loop of the script begins."""
        return self.steps_done // self._loop.steps_per_epoch

    def prepare(self, *args: Any, device_placement: Any = None) -> Any:
        schedulers = [one for one in args if isinstance(one, torch.optim.lr_scheduler.LRScheduler)]
        optimizers = [one for one in args if isinstance(one, torch.optim.Optimizer)]
        models = [one for one in args if isinstance(one, torch.nn.Module) and any(weight.requires_grad for weight in one.parameters())]
        loaders = [one for one in args if isinstance(one, torch.utils.data.DataLoader)]
        if self._job is not None:
            if models or optimizers or schedulers:
                refusals.refuse_second_training()
            prepared = [super(Accelerator, self).prepare(one, device_placement=device_placement) for one in args]
            prepared = [self._evaluation(one) if old in loaders else one for old, one in zip(args, prepared)]
            return prepared[0] if len(prepared) == 1 else tuple(prepared)
        if not (models or optimizers or schedulers or loaders):
            return super().prepare(*args, device_placement=device_placement)
        refusals.refuse_objects({"model": len(models), "optimizer": len(optimizers), "loader": len(loaders)})
        (model,), (optimizer,), training = models, optimizers, loaders[0]
        refusals.refuse_loader(training, self.gradient_accumulation_steps)
        refusals.refuse_scheduler(schedulers, optimizer)
        refusals.refuse_hook(self.ddp_handler)
        net = self.prepare_model(model)
        self._join(model, net, optimizer, schedulers, training)
        stand_in = CommittingOptimizer(optimizer, self._loop, device_placement=False)
        self._optimizers.append(stand_in)
        made: dict[int, Any] = {id(model): self._net, id(optimizer): stand_in}
        device = self.device if self.device_placement else None
        made[id(training)] = TrainingLoader(training, self._loop, device, self._begin_epoch, self._end_epoch)
        for one in schedulers:
            made[id(one)] = CommittedScheduler(one, stand_in, self._loop)
        for one in args:
            if id(one) not in made:
                prepared = super().prepare(one)
                made[id(one)] = self._evaluation(prepared) if one in loaders else prepared
        return tuple(made[id(one)] for one in args)

    def _join(self, model: Any, net: Any, optimizer: Any, schedulers: list[Any], loader: Any) -> None:
        batch_size = loader.batch_size * self.gradient_accumulation_steps
        num_samples = len(loader.dataset)
        rounded = math.floor if loader.drop_last else math.ceil
        sampler = Sampler(
            num_samples,
            batch_size,
            **self._length,
            seed=self.dataloader_config.data_seed or 0,
            reduction="sum",
            in_order=is_sequential(loader),
            drop_last=loader.drop_last,
        )
        state = {"model": model, "optimizer": optimizer}
        state |= {f"scheduler {index}": one for index, one in enumerate(schedulers)}
        state |= {f"object {index}": one for index, one in enumerate(self._custom_objects)}
        job = join_once({**state, **self._more_state}, self._join_options)
        self._membership = Membership(job, self._complete)
        job.on_generation(self._enter_generation)
        options = self.ddp_handler.to_kwargs() if self.ddp_handler is not None else {}
        options.pop("broadcast_buffers", None)  # The commit broadcasts them.
        self._model, self._net = model, job.model(net, **options)
        self._net.register_forward_hook(self._note_loss)
        is_exact = self.mixed_precision == "no" and all(weight.element_size() >= 4 for weight in model.parameters())
        self._weighing = Weighing(self._loss_of, shifts=_is_causal(model), is_exact=is_exact)
        options = {**options_of(loader), "worker_init_fn": loader.worker_init_fn}
        options["collate_fn"] = Parts(loader.collate_fn, loader.batch_size)
        steps = Steps(job, job.steps(loader.dataset, sampler, **options), sampler.total_steps)
        if not steps.meet() and not IS_WORKER:
            warn_of_no_step(self._join_options)
        self._job = job
        self._loop = OwnLoop(
            job,
            self._net,
            steps,
            optimizer,
            schedulers,
            pass_size=loader.batch_size,
            total=sampler.total_steps,
            steps_per_epoch=rounded(num_samples / min(batch_size, num_samples)),
            between=self._end_wait,
            begin=self._begin_step,
            show=self._show,
            weigh=self._weigh,
        )

    def _enter_generation(self, job: Job) -> None:
        take_rank(job)
        if job.rank == 0 and self._trackers_of_script is not None and not self.trackers:
            args, kwargs = self._trackers_of_script
            super().init_trackers(*args, **kwargs)

    def end_training(self) -> None:
        """Completes the training with all workers."""
        if self._job is not None:
            self._membership.close()
        super().end_training()

    def _complete(self) -> None:
        self._end_wait()
        self._loop.leave()

    # One step.

    def _begin_step(self, batch: Batch) -> None:
        if self._num_items is None:
            self._weighing.prepare(batch.step, [(inputs, None) for inputs in batch.data], self.job.sum)

    def _show(self, is_last: bool) -> None:
        self.gradient_state._set_sync_gradients(is_last)
        is_behind = self._loop.stage is Stage.MISSED
        if is_behind != self._is_behind:
            self._is_behind = is_behind
            take_rank(self.job, is_behind=is_behind)

    def _note_loss(self, _: Any, __: Any, output: Any) -> None:
        loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        self._own_loss = loss if torch.is_grad_enabled() else None

    def _weigh(self, inputs: Any, size: int, loss: Any) -> float:
        is_own, self._own_loss = loss is self._own_loss, None
        if self._num_items is not None:
            return float(self._num_items(inputs))
        if is_own:
            return self._weighing.weight(inputs, size, None).factor
        refusals.refuse_unclear_loss(inputs)
        return size

    def _loss_of(self, inputs: Any, _: Any, seed: int = 0) -> float:
        """The loss of a pass without gradients."""
        modes = [(module, module.training) for module in self._model.modules()]
        self._model.eval()
        try:
            with torch.no_grad(), same_random_numbers(self.device, seed):
                return float(self._model(**send_to_device(inputs, self.device))["loss"])
        finally:
            for module, was_training in modes:
                module.training = was_training

    @contextlib.contextmanager
    def accumulate(self, *_: Any) -> Iterator[None]:
        """Does nothing: the training loader knows which pass is the last one of a step."""
        yield

    def backward(self, loss: Any, **kwargs: Any) -> None:
        if self._job is None:
            super().backward(loss, **kwargs)
            return
        if "learning_rate" in kwargs:
            refusals.refuse_call("lomo_backward")
        self._loop.backward(loss, lambda weighed: weighed.backward(**kwargs))

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: Any = 2) -> Any:
        """Lets the commit clip the gradients of all workers.

        Returns a tensor that gets their norm with ``optimizer.step()``.
        """
        if self._job is None:
            return super().clip_grad_norm_(parameters, max_norm, norm_type)
        refusals.refuse_norm(norm_type)
        return self._loop.clip([parameters] if torch.is_tensor(parameters) else list(parameters), max_norm)

    # Between steps.

    def _begin_epoch(self) -> None:
        refusals.refuse_unread_counters(self._were_counters_read)
        self._has_begun = True

    def _end_epoch(self) -> None:
        # What the script does between epochs takes the ranks differently long.
        self._begin_wait()

    def _evaluation(self, loader: Any) -> EvaluationLoader:
        return EvaluationLoader(loader, self._begin_evaluation)

    def _begin_evaluation(self) -> None:
        is_before = not self._has_begun and self.job.steps_done < self._loop.total
        refusals.refuse_evaluation(is_before=is_before, is_in_step=self._loop.is_in_step)
        begins, self._evaluates = not self._evaluates, True
        if begins and self._may_wait() and all_begin(self.job, f"evaluate after {self._loop.counted}"):
            self._begin_wait()

    def _may_wait(self) -> bool:
        # A rank that has missed a step is behind the wait of the others.
        return self._wait is None and self._loop.stage is Stage.COMMITTED and not self._membership.is_over

    def _begin_wait(self) -> None:
        if self._may_wait():
            self._wait = waits(self.job, self._patience)
            self._wait.__enter__()

    def _end_wait(self) -> None:
        self._evaluates = False
        wait, self._wait = self._wait, None
        if wait is not None:
            wait.__exit__(None, None, None)

    def wait_for_everyone(self) -> None:
        """Waits until all ranks have called it. Before ``prepare`` and within a step it does
        nothing. After the last step it completes the training: if rank 0 was lost meanwhile, there
        is a new one afterwards."""
        if self._job is None or self._membership.is_over:
            return
        if self.job.steps_done == self._loop.total:
            self._complete()
        elif self._loop.stage is Stage.COMMITTED:
            evaluates = self._evaluates
            self._begin_wait()
            self._end_wait()
            self._evaluates = evaluates

    def gather(self, tensor: Any) -> Any:
        """Returns what it gets, in an evaluation: each rank evaluates the whole data set."""
        self._check_gather("gather")
        return super().gather(tensor)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """See :meth:`gather`."""
        self._check_gather("gather_for_metrics")
        return super().gather_for_metrics(input_data, use_gather_object)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """See :meth:`gather`."""
        self._check_gather("reduce")
        return super().reduce(tensor, reduction, scale)

    def pad_across_processes(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """See :meth:`gather`."""
        self._check_gather("pad_across_processes")
        return super().pad_across_processes(tensor, *args, **kwargs)

    def _check_gather(self, name: str) -> None:
        if self._job is not None:
            refusals.refuse_gather(name, self._evaluates)

    # Rank 0.

    def on_main_process(self, function: Any = None) -> Any:
        if function is None:
            return self.on_main_process

        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if self.is_main_process else None

        return call

    def init_trackers(self, *args: Any, **kwargs: Any) -> None:
        """Initializes the trackers of rank 0. If it is lost, those of the next rank 0 begin a
        further run."""
        self._trackers_of_script = args, kwargs
        if self.is_main_process:
            super().init_trackers(*args, **kwargs)

    def log(self, *args: Any, **kwargs: Any) -> None:
        if self.is_main_process:
            super().log(*args, **kwargs)

    def unwrap_model(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        inner = model.module if self._job is not None and model is self._net else model
        return super().unwrap_model(inner, *args, **kwargs)

    # What a job cannot follow.

    def register_for_checkpointing(self, *objects: Any) -> None:
        new = [one for one in objects if not isinstance(one, (CommittedScheduler, CommittingOptimizer))]
        if self._job is not None and new:
            refusals.refuse_call("register_for_checkpointing")
        super().register_for_checkpointing(*new)

    def save_state(self, *_: Any, **__: Any) -> Any:
        refusals.refuse_call("save_state")

    def load_state(self, *_: Any, **__: Any) -> Any:
        refusals.refuse_call("load_state")

    def clip_grad_value_(self, *_: Any, **__: Any) -> Any:
        refusals.refuse_call("clip_grad_value_")

    def set_trigger(self) -> Any:
        refusals.refuse_call("set_trigger")

    def check_trigger(self) -> Any:
        refusals.refuse_call("check_trigger")

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        if isinstance(dataloader, TrainingLoader):
            refusals.refuse_call("skip_first_batches")
        return super().skip_first_batches(dataloader, num_batches)


def _is_causal(model: Any) -> bool:
    """Whether a model of transformers predicts each label from those before it."""
    config = getattr(model, "config", None)
    return getattr(model, "loss_type", None) == "ForCausalLM" and not getattr(config, "is_encoder_decoder", False)
