"""The update of the weights at the end of a step."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.amp.grad_scaler import OptState

from .errors import ConfigError
from .local_parts import local_gradients
from .sampler import Step
from .step_numbers import Number


def loss_sum(loss: Number, step: Step, reduction: str) -> Number:
    """Sum of the losses of this rank's samples.
    ``loss`` is their mean or their sum, according to ``reduction``."""
    _check_one("the loss", loss, "its mean or its sum")
    if step.size == 0:
        return 0.0
    value = loss.detach().to(torch.float64) if isinstance(loss, torch.Tensor) else float(loss)
    return value * step.size if reduction == "mean" else value


def weight_of(weight: Number | None, step: Step, reduction: str, *, is_manual: bool) -> Number:
    """The weight of this rank's losses, such as its number of tokens; 0 if all samples have the
    same weight."""
    if weight is None:
        return 0.0
    if reduction != "sum" or is_manual:
        raise ConfigError(
            'job.commit: a weight is for gradients of sums: give job.sampler reduction="sum", and compute the loss as the sum over '
            'the tokens of the rank, such as cross_entropy(..., reduction="sum"); job.commit divides by the weight of all ranks'
        )
    _check_one("the weight", weight, "such as that of the rank's tokens")
    if step.size == 0:
        return 0.0
    return weight if isinstance(weight, torch.Tensor) else float(weight)


def _check_one(what: str, number: Number, meant: str) -> None:
    if isinstance(number, torch.Tensor) and number.numel() != 1:
        raise ConfigError(f"job.commit: {what} has the shape {list(number.shape)}; give one number, {meant}")


@torch.no_grad()
def multiply_gradients(parameters: Sequence[torch.Tensor], factor: float) -> None:
    """Multiplies all gradients, those of a sharded model in the parts of this process."""
    if gradients := local_gradients(parameters):
        torch._foreach_mul_(gradients, factor)


def clip_factor(norm: float, most: float | None) -> float:
    """What ``clip_grad_norm_`` of PyTorch multiplies gradients of this norm by."""
    is_clipped = most is not None and most < norm + 1e-6 and math.isfinite(norm)
    return most / (norm + 1e-6) if most is not None and is_clipped else 1.0


def gradient_norm(parameters: Sequence[torch.Tensor], most: float | None) -> Number:
    """Euclidean norm of all gradients, which are then clipped to ``most``. The norm stays on the
    device."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return 0.0
    if most is not None:
        return torch.nn.utils.clip_grad_norm_(parameters, most)
    norms = norms_of(gradients)
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
    return norm


def norms_of(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    """The norm of each tensor, in its own type, but not in half precision."""
    halves = [gradient for gradient in gradients if gradient.dtype in (torch.float16, torch.bfloat16)]
    if not halves:
        return list(torch._foreach_norm(gradients))
    # Half precision cannot represent the norm of half a million gradients of 100.
    others = [gradient for gradient in gradients if gradient.dtype not in (torch.float16, torch.bfloat16)]
    return [*torch._foreach_norm(halves, 2, torch.float32), *(torch._foreach_norm(others) if others else ())]


def unscaled_norm(
    optimizers: Sequence[torch.optim.Optimizer],
    parameters: Sequence[torch.Tensor],
    most: float | None,
    scaler: Any,
    scaled: float,
    scale: float,
) -> float:
    """The norm without the ``scale`` of a GradScaler. ``scaled`` is the norm of the current
    gradients."""
    still_scaled = [one for one in optimizers if not is_unscaled(scaler, one)]
    if most is None and len(still_scaled) == len(optimizers):
        return scaled / scale
    for one in still_scaled:
        scaler.unscale_(one)
    return float(gradient_norm(parameters, most))


def is_unscaled(scaler: Any, optimizer: torch.optim.Optimizer) -> bool:
    """Whether the script has called ``scaler.unscale_`` in this step. A scaler refuses a second
    call."""
    state = scaler._per_optimizer_states.get(id(optimizer))
    return state is not None and state["stage"] is not OptState.READY


def learning_rate(optimizers: Sequence[torch.optim.Optimizer]) -> float:
    """The learning rate of the first parameter group, for reports. NaN if there is none, as in an
    Adafactor with relative steps."""
    if not optimizers:
        return 0.0
    try:
        return float(optimizers[0].param_groups[0]["lr"])
    except (IndexError, KeyError, TypeError, ValueError):
        return math.nan


def schedulers_of(given: Any) -> list[Any]:
    """The schedulers of a ``commit`` as a list: none, one or several.

    Raises :class:`~roundhouse.errors.ConfigError` for a scheduler that ``commit`` cannot step.
    """
    if given is None:
        return []
    schedulers = list(given) if isinstance(given, (list, tuple)) else [given]
    for one in schedulers:
        kind: Any = type(one)
        name = kind.__name__
        if not callable(getattr(one, "step", None)):
            raise ConfigError(f"job.commit(loss, optimizer, scheduler): the third argument has to be a scheduler, not a {name}")
        if not _steps_alone(kind):
            raise ConfigError(
                f"job.commit cannot step a {name}, whose step() needs a number: keep it in rh.join(state=...), do not give it "
                "to job.commit, and call its step() where all ranks have the same number, such as in `then` of rh.Evaluation"
            )
    return schedulers


@functools.cache
def _steps_alone(kind: Any) -> bool:
    """Whether the ``step`` of a scheduler needs no argument. ReduceLROnPlateau needs a metric."""
    try:
        inspect.signature(kind.step).bind(None)
    except TypeError:
        return False
    except (AttributeError, ValueError):
        pass  # The signature is unknown.
    return True


def wide(kind: torch.dtype) -> torch.dtype:
    """The type in which numbers of this type are summed over slices. Sums in 16 bits would lose
    much."""
    return torch.float32 if kind in (torch.float16, torch.bfloat16) else kind


def update(optimizers: Sequence[torch.optim.Optimizer], schedulers: Sequence[Any], scaler: Any) -> bool:
    """Steps the optimizers, the schedulers and the scaler. Returns whether the scaler has skipped
    the step."""
    skipped = False
    if scaler is None:
        for optimizer in optimizers:
            optimizer.step()
    else:
        skipped = _update_scaled(optimizers, scaler)
    if not skipped:
        for scheduler in schedulers:
            scheduler.step()
    return skipped


def _update_scaled(optimizers: Sequence[torch.optim.Optimizer], scaler: Any) -> bool:
    """Steps all optimizers, or none if gradients are not finite. Returns whether it has skipped
    them."""
    # A scaler raises an error for an optimizer without gradients, such as the optimizer of a frozen
    # head.
    optimizers = [one for one in optimizers if _has_gradients(one)]
    if len(optimizers) == 1:
        # The scaler steps the optimizer before this reads its flag, so a fused optimizer steps on
        # the device meanwhile.
        scaler.step(optimizers[0])
        skipped = _is_any_infinite(scaler, optimizers)
    else:
        # A scaler decides for each optimizer, but a step must be committed or skipped as a whole.
        skipped = _is_any_infinite(scaler, optimizers)
        if not skipped:
            for optimizer in optimizers:
                scaler.step(optimizer)
    scaler.update()
    return skipped


def _has_gradients(optimizer: torch.optim.Optimizer) -> bool:
    return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])


def _is_any_infinite(scaler: Any, optimizers: Sequence[torch.optim.Optimizer]) -> bool:
    """Whether an optimizer has gradients that are not finite. Unscales the gradients."""
    for optimizer in optimizers:
        if not is_unscaled(scaler, optimizer):
            scaler.unscale_(optimizer)
    found = [scaler._per_optimizer_states[id(one)]["found_inf_per_device"].values() for one in optimizers]
    # This waits for the device, because the ledger contains whether the step was skipped.
    return any(float(flag) for flags in found for flag in flags)


def forget_gradients(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Drops the gradients before the next step."""
    for optimizer in {id(one): one for one in optimizers}.values():
        optimizer.zero_grad(set_to_none=True)
