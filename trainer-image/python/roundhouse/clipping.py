"""Refuses ``clip_grad_norm_`` where gradients are not summed over the ranks before the commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .errors import NotCommitted

# The function that changes gradients, in PyTorch 2.6 and newer.
_NAME = "_clip_grads_with_norm_"


class Clipping:
    """Checks each call of PyTorch's ``clip_grad_norm_``, however the script has imported it.
    ``concerns(parameters)``: whether their gradients are not summed yet."""

    def __init__(self, concerns: Callable[[Sequence[torch.Tensor]], bool]):
        self._concerns = concerns
        self._module: Any = torch.nn.utils.clip_grad
        self._clip = getattr(self._module, _NAME, None)
        if self._clip is not None:
            setattr(self._module, _NAME, self._checked)

    def _checked(self, parameters: Any, *args: Any, **options: Any) -> Any:
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if self._concerns(given):
            raise NotCommitted(
                "clip_grad_norm_ would clip the gradients of this process alone, because job.commit sums those of a sharded model and of "
                "slices: remove the call, and give job.commit max_grad_norm; the norm is job.grad_norm afterwards"
            )
        assert self._clip is not None
        return self._clip(given, *args, **options)

    def close(self) -> None:
        """Ends the checks."""
        if self._clip is not None:
            setattr(self._module, _NAME, self._clip)
