"""What the strategies refuse, before weights change. Each of these would be wrong without an error,
or would end the job later."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from ..errors import ConfigError
from ..integration.loaders import sampler_of

_WHOLE_EPOCHS = "the samples of a job are dealt for whole epochs; train with fewer samples, such as torch.utils.data.Subset"
_CLOCK = "the clocks of the workers differ, and so would their decisions; count steps or epochs"
_PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true")

# Attributes of a Trainer: whether a value is refused, and why.
_TRAINER: dict[str, tuple[Callable[[Any], bool], str]] = {
    "accumulate_grad_batches": (
        lambda value: value != 1,
        "the number of passes of a step follows from the number of workers; give Elastic the global_batch_size, which counts the "
        "samples of a step over all workers, give the loader the batch_size of one pass, and leave this out",
    ),
    "fast_dev_run": (bool, "it cuts the training; give max_steps=1, and leave it out"),
    "overfit_batches": (lambda value: value > 0, _WHOLE_EPOCHS),
    "limit_train_batches": (lambda value: value != 1.0 or isinstance(value, int), _WHOLE_EPOCHS),
    "reload_dataloaders_every_n_epochs": (
        lambda value: value > 0,
        "the job knows one data set; leave it out, and choose by the epoch in the data set",
    ),
}
# Callbacks, by the name of the class.
_CALLBACKS = {
    "BackboneFinetuning": "it gives the optimizer further parameters, and new workers would not have them; freeze by requires_grad",
    "BaseFinetuning": "it gives the optimizer further parameters, and new workers would not have them; freeze by requires_grad",
    "BatchSizeFinder": "start a job for each trial, or search in one process before",
    "GradientAccumulationScheduler": "the number of passes of a step follows from the number of workers; leave it out",
    "LearningRateFinder": "start a job for each trial, or search in one process before",
    "ModelPruning": "it changes the names of the weights, which the job keeps; prune in one process afterwards",
    "StochasticWeightAveraging": "it changes weights outside of the optimizer's step; average in the optimizer, or leave it out",
    "Timer": _CLOCK,
    "WeightAveraging": "new workers would not get its weights; give Elastic(state=...) an AveragedModel, or leave it out",
    "_LRCallback": "a search for a learning rate: start a job for each trial, or search in one process before",
}


def _refuse(what: str, why: str) -> None:
    raise ConfigError(f"roundhouse.lightning: {what}: {why}")


def refuse_trainer(trainer: Any, devices: Sequence[Any], num_nodes: int, layer_sync: Any) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for arguments of a Trainer that a job cannot
    follow."""
    for name, (is_refused, why) in _TRAINER.items():
        value = getattr(trainer, name)
        if is_refused(value):
            _refuse(f"Trainer({name}={value!r})", why)
    if trainer.max_epochs in (None, -1) and trainer.max_steps == -1:
        _refuse("Trainer(max_epochs=-1)", "a job needs its length; give max_epochs or max_steps")
    if getattr(trainer, "_val_check_time_interval", None) is not None:
        _refuse("Trainer(val_check_interval=...) as a time", _CLOCK)
    if layer_sync is not None:
        _refuse(
            "Trainer(sync_batchnorm=True)",
            "its statistics are those of a single pass; use GroupNorm or LayerNorm, and leave it out",
        )
    refuse_devices(trainer.accelerator, devices, num_nodes)
    refuse_precision(trainer.precision)
    for callback in trainer.callbacks:
        for kind in type(callback).__mro__:
            if kind.__name__ in _CALLBACKS and kind.__module__.startswith("lightning"):
                _refuse(f"the callback {type(callback).__name__}", _CALLBACKS[kind.__name__])
        if getattr(callback, "_train_time_interval", None) is not None:
            _refuse(f"{type(callback).__name__}(train_time_interval=...)", _CLOCK)


def refuse_checkpoint(path: Any) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a checkpoint of Lightning."""
    _refuse(
        f"fit(ckpt_path={str(path)!r})",
        "a job continues from its own checkpoints; leave it out, and load weights to begin with into the module",
    )


def refuse_devices(accelerator: Any, devices: Sequence[Any], num_nodes: int) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for several devices of one process."""
    name = type(accelerator).__name__
    if name not in ("CPUAccelerator", "CUDAAccelerator"):
        _refuse(f"a {name}", 'give accelerator="cpu" or "gpu"')
    # All GPUs of a machine may be the default.
    is_given = len(devices or ()) > 1 and not (name == "CUDAAccelerator" and len(devices) == torch.cuda.device_count())
    if is_given or num_nodes > 1:
        what = f"devices={len(devices)}" if is_given else f"num_nodes={num_nodes}"
        _refuse(what, "the job starts the workers, each with one device; leave it out, and set workers.replicas of the job")


def refuse_precision(precision: Any) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a precision that needs a scaler, or other
    kernels."""
    if str(precision) not in _PRECISIONS:
        _refuse(f"precision={precision!r}", f"give one of {', '.join(_PRECISIONS)}")


def refuse_module(module: Any, is_overridden: Callable[[str], bool]) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a module that steps by itself.
    ``is_overridden(name)``: whether it has a method of its own."""
    name = type(module).__name__
    if not module.automatic_optimization:
        _refuse(
            f"{name}.automatic_optimization is False",
            "a job repeats a step that has lost a worker, which it cannot do with manual_backward; return the loss from training_step, "
            "or write the loop with roundhouse, see docs/python.md",
        )
    if is_overridden("lr_scheduler_step"):
        _refuse(f"{name}.lr_scheduler_step", "the job calls step() of each scheduler in the commit; leave it out")
    if "dataloader_iter" in inspect.signature(module.training_step).parameters:
        _refuse(f"{name}.training_step(dataloader_iter)", "the job deals the batches; take a batch")


def refuse_optimizers(optimizers: Sequence[Any], configs: Iterable[Any]) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for what ``configure_optimizers`` has
    returned."""
    if len(optimizers) != 1:
        _refuse(f"configure_optimizers with {len(optimizers)} optimizers", "a step has one; give it all parameters, in groups")
    if not isinstance(optimizers[0], torch.optim.Optimizer) or not optimizers[0].param_groups:
        _refuse("configure_optimizers without an optimizer", "return one of torch.optim")
    if isinstance(optimizers[0], torch.optim.LBFGS):
        _refuse("LBFGS", "it calls the passes several times in a step; use another optimizer")
    for config in configs:
        kind = type(config.scheduler).__name__
        refuse_plateau(config.scheduler, config.reduce_on_plateau)
        if config.interval == "step" and config.frequency != 1:
            _refuse(f"a {kind} with frequency={config.frequency}", "the commit of each step calls it; give frequency 1")


def refuse_plateau(scheduler: Any, is_plateau: bool = False) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a scheduler that needs a metric."""
    if is_plateau or isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        kind = type(scheduler).__name__
        _refuse(f"a {kind}", "its step needs the metric of an evaluation, and the commit of a step calls it; use another one")


def refuse_unknown_schedulers(schedulers: Sequence[Any], known: Sequence[Any]) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a scheduler that the job does not step."""
    for scheduler in schedulers:
        if not any(scheduler is one for one in known):
            _refuse(
                f"fabric.setup was not given the {type(scheduler).__name__} of the optimizer",
                "a new worker would begin with a fresh one; make it before, and give it: fabric.setup(model, optimizer, "
                "scheduler=scheduler), which lightning has since 2.6",
            )


def refuse_loader(loader: Any) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a train loader whose samples the job
    cannot deal."""
    if not isinstance(loader, DataLoader):
        _refuse(f"a train loader of type {type(loader).__name__}", "give one torch.utils.data.DataLoader")
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        _refuse(
            f"the train data is a {type(dataset).__name__}, which can only be read from its beginning",
            "give a data set with __getitem__ and __len__, or write the loop with job.shard_of, see Streams in docs/guides/python-recipes.md",
        )
    sampler = sampler_of(loader)
    is_plain = type(sampler) is torch.utils.data.SequentialSampler or (
        type(sampler) is torch.utils.data.RandomSampler and not sampler.replacement and sampler.num_samples == len(dataset)
    )
    if not is_plain:
        name = type(sampler).__name__
        _refuse(
            f"the train loader has a {name}" if sampler is not None else "the train loader has batch_size=None",
            "the job deals the samples; give the loader shuffle and batch_size alone",
        )


def refuse_evaluation_loader(loader: Any) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a loader of one part of the evaluation
    data."""
    if isinstance(getattr(loader, "sampler", None), torch.utils.data.DistributedSampler):
        _refuse(
            "a validation loader with a DistributedSampler",
            "each worker evaluates all samples, and all take the metrics of rank 0; leave the sampler out",
        )
