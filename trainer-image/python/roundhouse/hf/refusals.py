"""What the elastic Trainer refuses, before weights change. Each of these would be wrong without an
error, or would end the job later."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..errors import ConfigError
from ..integration.loaders import sampler_of
from ..local_parts import is_sharded
from ..replica import Replica

# Why options that distribute a model are refused.
ONE_PROCESS = "the whole model is in each worker, and Roundhouse sums the gradients; leave it out"
_SHARDED = (
    "Roundhouse sums the gradients; leave it out, and for a model that does not fit on one GPU call fully_shard in the script, see "
    "Sharded models in docs/guides/hugging-face.md"
)
_NEEDS_METRIC = "its step needs the metric of an evaluation, and a job steps the scheduler in each committed step; use another one"
# Optimizers that change the weights in the backward pass, or for an evaluation.
_STEPS_EARLY = ("lomo", "adalomo", "layerwise", "schedule_free")
_EVENTS = "on_pre_optimizer_step", "on_optimizer_step"


def _is_set(value: Any) -> bool:
    return bool(value)


def _steps_early(value: Any) -> bool:
    return any(part in _text(value) for part in _STEPS_EARLY)


def _text(value: Any) -> str:
    return str(getattr(value, "value", value))


# Names of TrainingArguments: whether a value is refused, and why.
_ARGUMENTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "auto_find_batch_size": (
        _is_set,
        "a smaller batch would change the training; lower per_device_train_batch_size, which only limits a single pass",
    ),
    "average_tokens_across_devices": (
        lambda value: value is False,
        "the loss would depend on the number of workers; leave it out",
    ),
    "dataloader_in_order": (lambda value: value is False, "steps would get the samples of other steps; leave it out"),
    "deepspeed": (_is_set, ONE_PROCESS),
    "enable_jit_checkpoint": (_is_set, "Roundhouse handles SIGTERM and writes the checkpoints of the job; leave it out"),
    "eval_on_start": (
        _is_set,
        "a worker that joins later would evaluate while the others train; call trainer.evaluate() before trainer.train()",
    ),
    "fsdp": (_is_set, _SHARDED),
    "gradient_accumulation_steps": (
        lambda value: value != 1,
        "the number of passes of a step follows from the number of workers; give Trainer the global_batch_size, which counts the "
        "samples of a step over all workers, and leave this out",
    ),
    "include_num_input_tokens_seen": (
        lambda value: value not in (None, False, "no"),
        "each worker would count its own tokens alone; leave it out",
    ),
    "lr_scheduler_type": (lambda value: _text(value) in ("reduce_lr_on_plateau", "greedy"), _NEEDS_METRIC),
    "mixed_precision": (lambda value: value not in ("no", "bf16"), "only bf16 is supported; give bf16=True, or neither"),
    "optim": (_steps_early, "it changes weights outside of the optimizer's step; use another optimizer"),
    "parallelism_config": (lambda value: value is not None, _SHARDED),
    "train_sampling_strategy": (
        lambda value: value not in ("random", "sequential"),
        'Roundhouse deals the samples; give "random" or "sequential"',
    ),
}


def refuse_arguments(args: Any) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for ``TrainingArguments`` that a job cannot
    follow."""
    for name, (is_refused, why) in _ARGUMENTS.items():
        value = getattr(args, name, None)
        if hasattr(args, name) and is_refused(value):
            raise ConfigError(f"roundhouse.hf: TrainingArguments({name}={_text(value)!r}): {why}")
    if getattr(getattr(args, "accelerator_config", None), "split_batches", False):
        raise ConfigError("roundhouse.hf: accelerator_config with split_batches: Roundhouse deals the samples; leave it out")


def known_batch_size(given: int | None) -> int:
    """The number of samples of a step. Raises :class:`~roundhouse.errors.ConfigError` without
    one."""
    if given is None:
        raise ConfigError(
            "roundhouse.hf: Trainer(...) needs global_batch_size=N, the samples of a step over all workers, which stay the same when "
            "workers come and go: per_device_train_batch_size x gradient_accumulation_steps x number of processes of the script so far"
        )
    return given


def refuse_launcher(is_used: bool) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` if accelerate has started this process."""
    if is_used:
        raise ConfigError(
            "roundhouse.hf under a launcher of accelerate, or with its FSDP or DeepSpeed: Roundhouse starts the workers and sums "
            "the gradients; start the script with python, without variables ACCELERATE_*"
        )


def refuse_replica(replica: Replica, model: Any, device: torch.device) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for processes that share a model in a way that
    a Trainer cannot follow. ``device``: that of this process."""
    if replica.layout.has_own_gradients:
        raise ConfigError(
            "roundhouse.hf: rh.replica_mesh with stages of a pipeline or parts of a sequence: a Trainer computes whole passes; shard the "
            "model with fully_shard, or write the loop with rh.join, see docs/guides/sharded-models.md"
        )
    for weight in [] if model is None else model.parameters():
        if is_sharded(weight) and not weight.is_meta and weight.device != device:
            raise ConfigError(
                f"roundhouse.hf: the model is on {weight.device}, and TrainingArguments have {device}: call fully_shard before they are "
                "made, because they choose the first GPU; with use_cpu there must be no GPU"
            )


def refuse_call(resume_from_checkpoint: Any, trial: Any) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for arguments of ``Trainer.train``."""
    if resume_from_checkpoint:
        raise ConfigError(
            "roundhouse.hf: train(resume_from_checkpoint=...): a job continues from its own checkpoints; leave it out, and load "
            "weights to begin with into the model"
        )
    if trial is not None:
        raise ConfigError("roundhouse.hf: a search of hyperparameters: start a job for each trial")


def refuse_dataset(dataset: Any, loader: Any) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a data set that can only be read from its
    beginning, and for a sampler of the script. ``loader`` is the script's loader of the data
    set."""
    if isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__len__"):
        raise ConfigError(
            f"roundhouse.hf: train_dataset is a {type(dataset).__name__}, which can only be read from its beginning: give a data "
            "set with __getitem__ and __len__, or write the loop with job.shard_of, see Streams in docs/guides/python-recipes.md"
        )
    name = type(sampler_of(loader)).__name__
    if name not in ("RandomSampler", "SeedableRandomSampler", "SequentialSampler"):
        raise ConfigError(f"roundhouse.hf: get_train_dataloader has a {name}: Roundhouse deals the samples; leave it out")


def refuse_scheduler(scheduler: Any) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a scheduler that needs a metric."""
    kind = type(scheduler).__name__
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) or kind == "GreedyLR":
        raise ConfigError(f"roundhouse.hf: Trainer(optimizers=...) with a {kind}: {_NEEDS_METRIC}")


def refuse_callbacks(callbacks: Iterable[Any], plain: Any) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for callbacks that would come too late.
    ``plain`` is the class whose events do nothing."""
    for callback, event in itertools.product(callbacks, _EVENTS):
        if getattr(type(callback), event, None) not in (None, getattr(plain, event)):
            raise ConfigError(
                f"roundhouse.hf: {type(callback).__name__}.{event} would run after the step of the optimizer, when the gradients "
                "are gone; use on_step_end"
            )


def refuse_own_backward(kind: type, has_passed: bool) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a pass without the Trainer's backward
    pass."""
    if not has_passed:
        raise ConfigError(
            f"roundhouse.hf: training_step of a base of {kind.__name__} makes its backward pass without self.accelerator.backward, "
            "which weighs the loss by its samples or tokens; use it"
        )


def refuse_end_of_epoch(control: Any) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` if a callback ends an epoch early."""
    if control.should_epoch_stop:
        raise ConfigError(
            "roundhouse.hf: a callback has set control.should_epoch_stop: the samples of a job are dealt for whole epochs; set "
            "should_training_stop, or train with fewer samples"
        )


def refuse_overrides(kind: type, elastic: type, parts: Iterable[type] = ()) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a subclass of ``elastic`` that replaces
    one of its methods, or of its ``parts``. It would get the whole share of a step instead of a
    pass, or hide what makes the training elastic."""
    replaced = {name for owner in (elastic, *parts) for name in vars(owner) if not name.startswith("__")} - {"train"}
    for subclass in kind.__mro__[: kind.__mro__.index(elastic)]:
        for name in sorted(replaced & vars(subclass).keys()):
            raise ConfigError(
                f"roundhouse.hf: {subclass.__name__}.{name} replaces a method that makes the training elastic: put it into a "
                f"subclass of transformers.Trainer, and Elastic before that class: class Elastic{subclass.__name__}(Elastic, "
                f"{subclass.__name__})"
            )
