"""Buffers of the modules, such as the running statistics of batch normalization: as they were before a step, and those of
one rank on all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .gradients import Gradients
from .groups import Group
from .optimizer import bytes_of


class Buffers:
    """The buffers of all modules of the state."""

    def __init__(self, modules: Sequence[torch.nn.Module]):
        # The state has the same tensors since rh.join, so they are looked up once.
        self._buffers = [buffer for module in modules for buffer in module.buffers()]
        self._before: list[torch.Tensor] = []
        self._sent: tuple[torch.Tensor, Any] | None = None

    @torch.no_grad()
    def remember(self) -> None:
        """A step begins, which may be dropped."""
        if not self._buffers:
            return
        if not self._before:
            self._before = [torch.empty_like(buffer) for buffer in self._buffers]
        torch._foreach_copy_(self._before, self._buffers)

    @torch.no_grad()
    def restore(self) -> None:
        """The step is dropped."""
        self._sent = None
        if self._before:
            torch._foreach_copy_(self._buffers, self._before)

    @torch.no_grad()
    def begin_sharing(self, group: Group, source: int, gradients: Gradients) -> None:
        """Begins to send those of rank ``source`` to all others, as DDP does; an error drops the step."""
        if not self._buffers or gradients.broken is not None:
            return
        row = torch.cat([bytes_of(buffer) for buffer in self._buffers])
        try:
            self._sent = (row, group.begin_broadcast(row, source))
        except RuntimeError as error:
            gradients.broke(error)

    @torch.no_grad()
    def end_sharing(self, is_source: bool, gradients: Gradients) -> None:
        """Waits for them; an error drops the step."""
        if self._sent is None:
            return
        (row, work), self._sent = self._sent, None
        try:
            work.wait()
        except RuntimeError as error:
            gradients.broke(error)
            return
        if is_source:
            return
        at = 0
        for buffer in self._buffers:
            size = buffer.numel() * buffer.element_size()
            buffer.copy_(row[at : at + size].view(buffer.dtype).reshape(buffer.shape))
            at += size
