"""What the end of a step does to the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.amp.grad_scaler import OptState

from .data import Step
from .errors import ConfigError


def loss_sum(loss: torch.Tensor | float, step: Step, reduction: str) -> float:
    """Sum of the losses of this rank's samples; ``loss`` is their mean, or their sum, as ``reduction`` says."""
    if isinstance(loss, torch.Tensor) and loss.numel() != 1:
        raise ConfigError(f"job.commit: the loss has the shape {list(loss.shape)}; give one number, its mean or its sum")
    if step.size == 0:
        return 0.0
    value = float(loss.detach() if isinstance(loss, torch.Tensor) else loss)
    return value * step.size if reduction == "mean" else value


def gradient_norm(parameters: Sequence[torch.Tensor], most: float | None) -> float:
    """Euclidean norm of all gradients, which are then clipped to ``most``."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return 0.0
    if most is not None:
        return float(torch.nn.utils.clip_grad_norm_(parameters, most))
    norms = _norms(gradients)
    return float(torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms])))


def _norms(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    halves = [gradient for gradient in gradients if gradient.dtype in (torch.float16, torch.bfloat16)]
    if not halves:
        return list(torch._foreach_norm(gradients))
    # The norm of half a million gradients of 100 is more than half precision can hold.
    others = [gradient for gradient in gradients if gradient.dtype not in (torch.float16, torch.bfloat16)]
    return [*torch._foreach_norm(halves, 2, torch.float32), *(torch._foreach_norm(others) if others else ())]


def unscaled_norm(
    optimizers: Sequence[torch.optim.Optimizer],
    parameters: Sequence[torch.Tensor],
    most: float | None,
    scaler: Any,
    scaled: float,
) -> float:
    """The norm without the scale of a GradScaler; ``scaled`` is that of the gradients as they are."""
    still_scaled = [one for one in optimizers if not _is_unscaled(scaler, one)]
    if most is None and len(still_scaled) == len(optimizers):
        return scaled / float(scaler.get_scale())
    for one in still_scaled:
        scaler.unscale_(one)
    return gradient_norm(parameters, most)


def _is_unscaled(scaler: Any, optimizer: torch.optim.Optimizer) -> bool:
    """Whether the script has called ``scaler.unscale_`` in this step; a scaler refuses the second call."""
    state = scaler._per_optimizer_states.get(id(optimizer))
    return state is not None and state["stage"] is not OptState.READY


def update(optimizers: Sequence[torch.optim.Optimizer], scheduler: Any, scaler: Any) -> bool:
    """Steps the optimizers, the scheduler and the scaler; whether the scaler has skipped the step."""
    for optimizer in optimizers:
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
    skipped = False
    if scaler is not None:
        before = scaler.get_scale()
        scaler.update()
        skipped = scaler.get_scale() < before
    if scheduler is not None and not skipped:
        scheduler.step()
    return skipped


def forget_gradients(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """The next step begins without gradients."""
    for optimizer in {id(one): one for one in optimizers}.values():
        optimizer.zero_grad(set_to_none=True)
