"""Gradient scalers of models that a replica shares: all processes skip a step, or none does.

A scaler decides by the gradients of one process. Here the norm of the whole gradient decides: it is
not finite if a gradient of any process is not, and all processes of all replicas know it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from .errors import ConfigError
from .local_parts import local_gradients
from .updates import is_unscaled


def check_scaler(
    scaler: Any, optimizers: Sequence[torch.optim.Optimizer], trained: Sequence[torch.Tensor], device: torch.device
) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for what a scaler cannot do in a replica."""
    if scaler is None:
        return
    if any(is_unscaled(scaler, one) for one in optimizers):
        raise ConfigError(
            "job.commit: scaler.unscale_(optimizer) looks at gradients that are not yet summed over the replicas: remove the call; "
            "job.commit unscales them, and clips them if it gets max_grad_norm"
        )
    if any(gradient.dtype == torch.float16 for gradient in local_gradients(trained)):
        raise ConfigError(
            "job.commit: a GradScaler cannot unscale gradients of float16: keep the parameters in float32, and compute in float16 with "
            "torch.autocast or the MixedPrecisionPolicy of fully_shard"
        )
    if scaler._scale is None:
        # A stage of a pipeline that does not know the loss has scaled nothing yet.
        scaler.scale(torch.zeros((), device=device))


def unscale(trained: Sequence[torch.Tensor], scale: float) -> None:
    """Divides the gradients by the scale of the scaler."""
    gradients = local_gradients(trained)
    if gradients:
        torch._foreach_mul_(gradients, 1.0 / scale)


def update_scaled(
    optimizers: Sequence[torch.optim.Optimizer], schedulers: Sequence[Any], scaler: Any, norm: float
) -> bool:
    """Steps the optimizers and schedulers if the norm is finite, and the scaler. Returns whether it
    has skipped the step."""
    skipped = not math.isfinite(norm)
    if not skipped:
        for one in (*optimizers, *schedulers):
            one.step()
    found = torch.full((), float(skipped), dtype=torch.float32, device=scaler._scale.device)
    scaler._per_optimizer_states[id(scaler)]["found_inf_per_device"] = {found.device: found}
    scaler.update()
    return skipped
