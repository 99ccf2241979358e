"""``accelerate.Accelerator`` for a loop of the script.

The library believes that it trains in one process. ``prepare`` joins the job. Its training loader
yields the passes of this rank's share, and the step of its optimizer commits.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any

import accelerate
import torch
from accelerate.utils import send_to_device

from ...data import Batch
from ...integration.loaders import is_sequential, options_of
from ...integration.membership import Membership
from ...integration.parts import Parts
from ...integration.random_numbers import same_random_numbers
from ...integration.steps import Steps
from ...job import Job
from ...replica import current
from ...sampler import Sampler, steps_per_epoch
from .. import refusals_of_loop, refusals_of_prepare as refusals
from ..own_loop import OwnLoop, Stage
from ..starting import join_once, warn_of_no_step
from ..weighing import Weighing
from .accelerated import CommittedScheduler, CommittingOptimizer, TrainingLoader
from .around_steps import AroundSteps
from .libraries import IS_WORKER, check_methods, take_gpu, take_rank

METHODS = """
    accumulate backward check_trigger clip_grad_norm_ clip_grad_value_ end_training gather gather_for_metrics init_trackers
    load_state log on_main_process pad_across_processes prepare prepare_model reduce register_for_checkpointing save_state
    set_trigger skip_first_batches unwrap_model wait_for_everyone
""".split()

check_methods(accelerate.Accelerator, METHODS, f"accelerate {accelerate.__version__}")
_PATIENCE = 1800.0


class Accelerator(AroundSteps, accelerate.Accelerator):
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
        refusals.refuse_replica(current())
        refusals.refuse_options(inspect.signature(accelerate.Accelerator).bind(*args, **kwargs).arguments)
        self._length = {"epochs": epochs, "steps": steps}
        self._num_items, self._more_state, self._join_options = num_items, state or {}, join or {}
        self._job: Job | None = None
        self._were_counters_read = False
        # Whether the current pass is of a step that this rank has missed.
        self._is_behind = False
        # The loss that the model has returned in its last pass.
        self._own_loss: Any = None
        super().__init__(*args, **kwargs)
        take_gpu()
        self._patience = self.init_handler.timeout.total_seconds() if self.init_handler is not None else _PATIENCE

    # The job.

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
            steps_per_epoch=steps_per_epoch(num_samples, batch_size, drop_last=loader.drop_last),
            between=self._end_wait,
            begin=self._begin_step,
            show=self._show,
            weigh=self._weigh,
            more_state=[*self._custom_objects, *self._more_state.values()],
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
        refusals_of_loop.refuse_unclear_loss(inputs)
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
            refusals_of_loop.refuse_call("lomo_backward")
        self._loop.backward(loss, lambda weighed: weighed.backward(**kwargs))

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: Any = 2) -> Any:
        """Lets the commit clip the gradients of all workers.

        Returns a tensor that gets their norm with ``optimizer.step()``.
        """
        if self._job is None:
            return super().clip_grad_norm_(parameters, max_norm, norm_type)
        refusals_of_loop.refuse_norm(norm_type)
        return self._loop.clip([parameters] if torch.is_tensor(parameters) else list(parameters), max_norm)


def _is_causal(model: Any) -> bool:
    """Whether a model of transformers predicts each label from those before it."""
    config = getattr(model, "config", None)
    return getattr(model, "loss_type", None) == "ForCausalLM" and not getattr(config, "is_encoder_decoder", False)
