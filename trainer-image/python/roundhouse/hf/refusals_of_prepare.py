"""What a job refuses of an Accelerator before its loop begins: options, a launcher, and the objects
that ``prepare`` gets. Each of these would be wrong without an error, or would end the job later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..errors import ConfigError
from ..integration.loaders import sampler_of
from ..replica import Replica
from .refusals import ONE_PROCESS


def _is_given(value: Any) -> bool:
    return value is not None


# Options of accelerate.Accelerator: whether a value is refused, and why.
_OPTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "deepspeed_plugin": (_is_given, ONE_PROCESS),
    "deepspeed_plugins": (_is_given, ONE_PROCESS),
    "fsdp_plugin": (_is_given, ONE_PROCESS),
    "megatron_lm_plugin": (_is_given, ONE_PROCESS),
    "parallelism_config": (_is_given, ONE_PROCESS),
    "torch_tp_plugin": (_is_given, ONE_PROCESS),
    "mixed_precision": (
        lambda value: value is not None and str(value) not in ("no", "bf16"),
        'only bf16 is supported; give "bf16", or leave it out',
    ),
    "split_batches": (bool, "Roundhouse deals the samples; leave it out"),
    "step_scheduler_with_optimizer": (
        lambda value: value is False,
        "the job steps the scheduler with the optimizer; leave it out, and let the scheduler count steps",
    ),
}
# Attributes of a DataLoaderConfiguration and of a GradientAccumulationPlugin.
_CONFIGURED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "split_batches": (bool, "Roundhouse deals the samples; leave it out"),
    "dispatch_batches": (bool, "each worker reads its own samples; leave it out"),
    "use_stateful_dataloader": (bool, "a job continues from its own checkpoints; leave it out"),
    "sync_with_dataloader": (lambda value: value is False, "a step of a job ends with its epoch; leave it out"),
}
# Variables that `accelerate launch` sets.
_LAUNCHER = """
    ACCELERATE_USE_CPU ACCELERATE_USE_FSDP ACCELERATE_USE_DEEPSPEED ACCELERATE_USE_MEGATRON_LM ACCELERATE_MIXED_PRECISION
    ACCELERATE_GRADIENT_ACCUMULATION_STEPS ACCELERATE_USE_PARALLELISM_CONFIG
""".split()


def refuse_replica(replica: Replica | None) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for processes that share a model."""
    if replica is not None:
        raise ConfigError(
            "roundhouse.hf: an Accelerator with rh.replica_mesh(): processes that share a model have to make the same number of passes, "
            "and a loop over a loader does not; use roundhouse.hf.Trainer, or write the loop with rh.join"
        )


def refuse_launcher(environment: Mapping[str, str]) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` under ``accelerate launch``."""
    found = [name for name in _LAUNCHER if name in environment]
    if found:
        raise ConfigError(
            f"roundhouse.hf under accelerate launch ({found[0]} is set): Roundhouse starts the workers and sums the gradients; start "
            "the script with python, without variables ACCELERATE_*"
        )


def refuse_options(options: Mapping[str, Any]) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for options of ``Accelerator`` that a job
    cannot follow."""
    found = [(f"{name}={options[name]!r}", entry[1]) for name, entry in _OPTIONS.items() if name in options and entry[0](options[name])]
    for owner in ("dataloader_config", "gradient_accumulation_plugin"):
        own = vars(options[owner]) if options.get(owner) is not None else {}
        own = {**own, **own.get("plugin_kwargs", {})}
        found += [(f"{owner} with {name}={own[name]!r}", entry[1]) for name, entry in _CONFIGURED.items() if name in own and entry[0](own[name])]
    for words, why in found:
        raise ConfigError(f"roundhouse.hf: Accelerator({words}): {why}")


def refuse_length(epochs: int | None, steps: int | None) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` if the length of the training is not clear."""
    if (epochs is None) == (steps is None):
        raise ConfigError(
            "roundhouse.hf: Accelerator needs either epochs=N or steps=N: how long the training is, whichever worker joins it"
        )


def refuse_objects(kinds: Mapping[str, int]) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for objects that one call of ``prepare``
    cannot make elastic. ``kinds``: the number of objects of each kind."""
    if kinds["model"] == kinds["optimizer"] == 1 and kinds["loader"] >= 1:
        return
    if kinds["optimizer"] > 1:
        raise ConfigError(
            f"roundhouse.hf: accelerator.prepare with {kinds['optimizer']} optimizers: a step of a job has one update; write the loop "
            "with job.commit, which takes several, see docs/guides/python-recipes.md"
        )
    raise ConfigError(
        "roundhouse.hf: accelerator.prepare needs the model, its optimizer and the training loader in one call, and the scheduler "
        f"with them; this one has {kinds['model']} trained models, {kinds['optimizer']} optimizers and {kinds['loader']} loaders"
    )


def refuse_second_training() -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a second optimizer or trained model."""
    raise ConfigError(
        "roundhouse.hf: a second accelerator.prepare with a trained model, an optimizer or a scheduler: a step of a job has one "
        "update; give all of them to the first call, or write the loop with job.commit, see docs/guides/python-recipes.md"
    )


def refuse_loader(loader: Any, accumulation: int) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a training loader whose samples cannot be
    dealt."""
    dataset = loader.dataset
    if isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__len__"):
        raise ConfigError(
            f"roundhouse.hf: the training loader reads a {type(dataset).__name__}, which can only be read from its beginning: give a "
            "data set with __getitem__ and __len__, or write the loop with job.shard_of, see Streams in docs/guides/python-recipes.md"
        )
    if loader.batch_size is None and type(loader.batch_sampler).__name__ in ("NoneType", "BatchSampler"):
        raise ConfigError("roundhouse.hf: the training loader has no batch_size: give it the number of samples of a pass")
    sampler = sampler_of(loader)
    name = type(sampler).__name__
    is_known = name in ("RandomSampler", "SeedableRandomSampler", "SequentialSampler")
    if not is_known or getattr(sampler, "replacement", False) or len(sampler) != len(dataset):
        raise ConfigError(
            f"roundhouse.hf: the training loader has a {name} of its own: Roundhouse deals the samples; give shuffle=True, or nothing"
        )
    if loader.drop_last and (len(dataset) // loader.batch_size) % accumulation:
        raise ConfigError(
            "roundhouse.hf: the training loader has drop_last=True, and its last step would have fewer than "
            f"{accumulation} passes: leave out drop_last"
        )


def refuse_hook(handler: Any) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for options of DDP with another sum of the
    gradients."""
    hook = getattr(handler, "comm_hook", "no")
    if getattr(hook, "value", hook) != "no":
        raise ConfigError(
            "roundhouse.hf: DistributedDataParallelKwargs with a comm_hook: Roundhouse sums the gradients, and its weights are those of "
            "one process; leave it out"
        )


def refuse_scheduler(schedulers: Sequence[Any], optimizer: Any) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a scheduler that needs a metric, and for
    one that ``prepare`` did not get."""
    for scheduler in schedulers:
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise ConfigError(
                "roundhouse.hf: a ReduceLROnPlateau: its step needs a metric, and a job steps the scheduler in each committed step; "
                "use another one"
            )
    if not schedulers and hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        raise ConfigError(
            "roundhouse.hf: the optimizer has a scheduler that accelerator.prepare did not get: new workers would begin with a fresh "
            "one; give it to the same call"
        )


def refuse_late_scheduler(optimizer: Any) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a scheduler of the stand-in that
    ``prepare`` has returned."""
    if "step" in vars(optimizer):
        raise ConfigError(
            "roundhouse.hf: a scheduler was made after accelerator.prepare: new workers would begin with a fresh one; make it before, "
            "and give it to the same call"
        )
