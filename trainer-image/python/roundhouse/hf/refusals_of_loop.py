"""What a job refuses in a loop of the script with accelerate. Each of these would be wrong without
an error, or would end the job later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..errors import ConfigError
from .loaders import sampler_of

_ONE_PROCESS = "the whole model is in each worker, and Roundhouse sums the gradients; leave it out"
_IGNORED = -100


def _is_given(value: Any) -> bool:
    return value is not None


# Options of accelerate.Accelerator: whether a value is refused, and why.
_OPTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "deepspeed_plugin": (_is_given, _ONE_PROCESS),
    "deepspeed_plugins": (_is_given, _ONE_PROCESS),
    "fsdp_plugin": (_is_given, _ONE_PROCESS),
    "megatron_lm_plugin": (_is_given, _ONE_PROCESS),
    "parallelism_config": (_is_given, _ONE_PROCESS),
    "torch_tp_plugin": (_is_given, _ONE_PROCESS),
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
            "with job.commit, which takes several, see docs/python.md"
        )
    raise ConfigError(
        "roundhouse.hf: accelerator.prepare needs the model, its optimizer and the training loader in one call, and the scheduler "
        f"with them; this one has {kinds['model']} trained models, {kinds['optimizer']} optimizers and {kinds['loader']} loaders"
    )


def refuse_second_training() -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a second optimizer or trained model."""
    raise ConfigError(
        "roundhouse.hf: a second accelerator.prepare with a trained model, an optimizer or a scheduler: a step of a job has one "
        "update; give all of them to the first call, or write the loop with job.commit, see docs/python.md"
    )


def refuse_loader(loader: Any, accumulation: int) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a training loader whose samples cannot be
    dealt."""
    dataset = loader.dataset
    if isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__len__"):
        raise ConfigError(
            f"roundhouse.hf: the training loader reads a {type(dataset).__name__}, which can only be read from its beginning: give a "
            "data set with __getitem__ and __len__, or write the loop with job.shard_of, see docs/python.md"
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


def refuse_unread_counters(were_read: bool) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a script that counts from 0 in each
    worker."""
    if not were_read:
        raise ConfigError(
            "roundhouse.hf: the loop begins without accelerator.epochs_done or accelerator.steps_done: a worker that joins later would "
            "count from 0; write `for epoch in range(accelerator.epochs_done, num_epochs)`, and begin the counter of steps with "
            "accelerator.steps_done"
        )


def refuse_backward(*, is_in_step: bool, has_passed: bool) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a backward pass at a wrong place."""
    if not is_in_step:
        raise ConfigError(
            "roundhouse.hf: accelerator.backward outside of the loop over the training loader, which is the first loader that "
            "accelerator.prepare gets"
        )
    if has_passed:
        raise ConfigError("roundhouse.hf: accelerator.backward twice for one batch: add the losses, and call it once")


def refuse_missing_backward(has_passed: bool) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a pass without a backward pass."""
    if not has_passed:
        raise ConfigError(
            "roundhouse.hf: a pass has ended without accelerator.backward(loss): the samples of a job are dealt for all passes; "
            "call it once for each batch of the training loader"
        )


def refuse_missing_step(*, was_missed: bool) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a step that the script does not commit."""
    if was_missed:
        raise ConfigError(
            "roundhouse.hf: optimizer.step() was not called after the last pass of a step: call it after each accelerator.backward, as "
            "in `with accelerator.accumulate(model)`; it does nothing before the last pass"
        )


def refuse_missing_scheduler(has_stepped: bool) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a scheduler that the script does not step
    with the optimizer."""
    if not has_stepped:
        raise ConfigError(
            "roundhouse.hf: the scheduler's step() was not called after optimizer.step(): a job steps it with the optimizer; call it "
            "there, and let the scheduler count steps, not epochs"
        )


def refuse_step(*, is_last: bool) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a step of the optimizer at a wrong
    place."""
    if not is_last:
        raise ConfigError("roundhouse.hf: optimizer.step() twice for one batch, or outside of the loop over the training loader")


def refuse_changed_gradients(are_changed: bool) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for gradients that the script has changed."""
    if are_changed:
        raise ConfigError(
            "roundhouse.hf: the gradients were changed between accelerator.backward and optimizer.step(): they are sums until the "
            "commit divides them; clip them with accelerator.clip_grad_norm_, and change nothing else"
        )


def refuse_part_of_gradients(parameters: Sequence[torch.Tensor], trained: Sequence[torch.Tensor]) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a norm of some of the trained
    parameters."""
    missing = {id(weight) for weight in trained} - {id(weight) for weight in parameters}
    if missing:
        raise ConfigError(
            f"roundhouse.hf: accelerator.clip_grad_norm_ without {len(missing)} of the optimizer's parameters: the job clips the norm of "
            "all gradients; give it model.parameters()"
        )


def refuse_unclear_loss(inputs: Any) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a loss of the script that may be a mean
    over labels, whose number only the script knows."""
    values = list(inputs.values()) if isinstance(inputs, Mapping) else list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    for value in values:
        if torch.is_tensor(value) and value.ndim > 1 and not value.is_floating_point() and bool(value.eq(_IGNORED).any()):
            raise ConfigError(
                "roundhouse.hf: the loss is not the one that the model returns, and the batch has labels of -100, so its samples may have "
                "different numbers of labels: say of how many items the loss is the mean, as in "
                "Accelerator(num_items=lambda batch: (batch['labels'] != -100).sum())"
            )


def refuse_norm(norm_type: Any) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a norm other than the Euclidean one."""
    if norm_type != 2:
        raise ConfigError(f"roundhouse.hf: accelerator.clip_grad_norm_ with norm_type={norm_type!r}: the commit clips the Euclidean norm; leave it out")


def refuse_late_scheduler(optimizer: Any) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a scheduler of the stand-in that
    ``prepare`` has returned."""
    if "step" in vars(optimizer):
        raise ConfigError(
            "roundhouse.hf: a scheduler was made after accelerator.prepare: new workers would begin with a fresh one; make it before, "
            "and give it to the same call"
        )


def refuse_evaluation(*, is_before: bool, is_in_step: bool) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for an evaluation at a wrong place."""
    if is_before:
        raise ConfigError(
            "roundhouse.hf: an evaluation before the first step: a worker that joins later would evaluate while the others train; "
            "evaluate after a step"
        )
    if is_in_step:
        raise ConfigError(
            "roundhouse.hf: an evaluation within a step: the other workers wait for this pass; evaluate after optimizer.step(), and "
            "only `if accelerator.sync_gradients`"
        )


def refuse_gather(name: str, is_evaluation: bool) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for an exchange between ranks outside of an
    evaluation."""
    if not is_evaluation:
        raise ConfigError(
            f"roundhouse.hf: accelerator.{name} outside of an evaluation: workers make different numbers of passes, so it would not "
            "be the number of all; use accelerator.job.loss, the loss of the last step over all workers"
        )


def refuse_call(name: str) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a method of ``Accelerator`` that a job
    cannot follow."""
    raise ConfigError(f"roundhouse.hf: accelerator.{name}: {_CALLS[name]}")


# Why a method of accelerate.Accelerator is refused.
_CALLS = {
    "check_trigger": "all workers have to leave the loop after the same step; decide by the step, or by an evaluation",
    "clip_grad_value_": "the gradients are sums until the commit divides them; use accelerator.clip_grad_norm_",
    "load_state": "a job continues from its own checkpoints (spec.checkpoint); load weights to begin with into the model",
    "register_for_checkpointing": "the job has begun without these objects; call it before accelerator.prepare",
    "save_state": "a job writes and reads its own checkpoints (spec.checkpoint); leave it out, and export weights with "
    "accelerator.unwrap_model(model).save_pretrained(...)",
    "set_trigger": "all workers have to leave the loop after the same step; decide by the step, or by an evaluation",
    "skip_first_batches": "the training loader continues where the job is; leave it out",
    "lomo_backward": "it changes weights in the backward pass; use another optimizer",
}
