"""What a job refuses in a loop of the script with accelerate. Each of these would be wrong without
an error, or would end the job later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..errors import ConfigError
from .weighing import IGNORED_LABEL


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
        if torch.is_tensor(value) and value.ndim > 1 and not value.is_floating_point() and bool(value.eq(IGNORED_LABEL).any()):
            raise ConfigError(
                "roundhouse.hf: the loss is not the one that the model returns, and the batch has labels of -100, so its samples may have "
                "different numbers of labels: say of how many items the loss is the mean, as in "
                "Accelerator(num_items=lambda batch: (batch['labels'] != -100).sum())"
            )


def refuse_norm(norm_type: Any) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a norm other than the Euclidean one."""
    if norm_type != 2:
        raise ConfigError(f"roundhouse.hf: accelerator.clip_grad_norm_ with norm_type={norm_type!r}: the commit clips the Euclidean norm; leave it out")


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
