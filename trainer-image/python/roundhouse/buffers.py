"""Buffers of the modules, such as the running statistics of batch normalization: as they were before a step, and those of
one rank on all others."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .gradients import Gradients
from .groups import Group
from .optimizer import bytes_of


class Buffers:
    """The buffers of all modules of the state."""

    def __init__(self, modules: Sequence[torch.nn.Module]):
        self._modules = modules
        self._buffers: list[torch.Tensor] = []
        self._before: list[torch.Tensor] = []

    @torch.no_grad()
    def remember(self) -> None:
        """A step begins, which may be dropped."""
        buffers = [buffer for module in self._modules for buffer in module.buffers()]
        if [id(buffer) for buffer in buffers] != [id(buffer) for buffer in self._buffers]:
            self._buffers = buffers
            self._before = [torch.empty_like(buffer) for buffer in buffers]
        if buffers:
            torch._foreach_copy_(self._before, buffers)

    @torch.no_grad()
    def restore(self) -> None:
        """The step is dropped."""
        if self._before:
            torch._foreach_copy_(self._buffers, self._before)

    @torch.no_grad()
    def share(self, group: Group, source: int, gradients: Gradients) -> None:
        """Copies those of rank ``source`` to all others, as DDP does; an error drops the step."""
        if not self._buffers or gradients.broken is not None:
            return
        row = torch.cat([bytes_of(buffer) for buffer in self._buffers])
        try:
            group.begin_broadcast(row, source).wait()
        except RuntimeError as error:
            gradients.broke(error)
            return
        if group.rank == source:
            return
        at = 0
        for buffer in self._buffers:
            size = buffer.numel() * buffer.element_size()
            buffer.copy_(row[at : at + size].view(buffer.dtype).reshape(buffer.shape))
            at += size
