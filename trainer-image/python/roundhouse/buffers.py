"""Buffers of the modules, such as the running statistics of batch normalization: copies of their
values before a step, and the broadcast of one rank's values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .errors import StateError
from .gradients import Gradients
from .groups import Group
from .optimizer import bytes_of
from .updates import wide


class Place:
    """The attribute of a module that holds a buffer. The module may assign another tensor in each
    step."""

    def __init__(self, owner: torch.nn.Module, key: str, buffer: torch.Tensor):
        self._buffers, self._key = owner._buffers, key
        self._name = f"the buffer {key} of {type(owner).__name__}"
        self.shape, self.dtype, self.device = buffer.shape, buffer.dtype, buffer.device
        self.num_bytes = buffer.numel() * buffer.element_size()
        # Other buffers may change their shape, such as a mask that is rebuilt for longer samples.
        self.is_persistent = key not in owner._non_persistent_buffers_set

    def buffer(self) -> torch.Tensor | None:
        """The current buffer; None if it was removed, or if its type or shape has changed."""
        buffer = self._buffers.get(self._key)
        if buffer is not None and (buffer.shape, buffer.dtype) == (self.shape, self.dtype):
            return buffer
        if self.is_persistent:
            raise StateError(f"{self._name} has changed since rh.join: it was {list(self.shape)} of {self.dtype}")
        return None

    def bytes(self) -> torch.Tensor:
        """The bytes of the current buffer; empty if there is none."""
        buffer = self.buffer()
        return torch.zeros(self.num_bytes, dtype=torch.uint8, device=self.device) if buffer is None else bytes_of(buffer)


def _cloned(buffer: torch.Tensor | None) -> torch.Tensor | None:
    return None if buffer is None else buffer.clone()


class Buffers:
    """The buffers of all modules of the state."""

    def __init__(self, modules: Sequence[torch.nn.Module]):
        owners = list(dict.fromkeys(owner for module in modules for owner in module.modules()))
        self._owners = [owner._buffers for owner in owners]
        # The buffers that all ranks have when they join.
        self._places = [
            Place(owner, key, buffer) for owner in owners for key, buffer in owner._buffers.items() if buffer is not None
        ]
        # Changes of the first kind are averaged over slices. Buffers of the second kind, such as
        # counts, get the values of the first slice.
        self._moving = [place for place in self._places if place.dtype.is_floating_point or place.dtype.is_complex]
        self._fixed = [place for place in self._places if place not in self._moving]
        self._others = [place for place in self._places if not place.is_persistent]
        self._kept: list[tuple[dict[str, torch.Tensor | None], str, torch.Tensor | None]] = []
        self._buffers: list[torch.Tensor] = []
        self._before: list[torch.Tensor] = []
        # With slices: the other buffers as the first slice has left them, if this rank has it.
        self._after_first: list[torch.Tensor | None] = []

    @torch.no_grad()
    def remember(self) -> None:
        """Saves the buffers before a step, which may be dropped."""
        self._kept = [(owner, key, buffer) for owner in self._owners for key, buffer in owner.items()]
        buffers = [buffer for _, _, buffer in self._kept if buffer is not None]
        if [id(buffer) for buffer in buffers] != [id(buffer) for buffer in self._buffers]:
            self._buffers = buffers
            self._before = [torch.empty_like(buffer) for buffer in buffers]
        if buffers:
            torch._foreach_copy_(self._before, buffers)

    @torch.no_grad()
    def restore(self) -> None:
        """Restores the buffers after a dropped step."""
        if self._before:
            torch._foreach_copy_(self._buffers, self._before)
        for owner, key, buffer in self._kept:
            owner[key] = buffer

    @contextlib.contextmanager
    def as_before(self) -> Iterator[None]:
        """Within the context the buffers have their values from before the step."""
        after = [(owner, key, buffer, _cloned(buffer)) for owner in self._owners for key, buffer in owner.items()]
        self.restore()
        try:
            yield
        finally:
            with torch.no_grad():
                for owner, key, buffer, value in after:
                    owner[key] = buffer
                    if buffer is not None and value is not None:
                        buffer.copy_(value)

    @property
    def num_bytes(self) -> int:
        """Number of bytes that :meth:`share` copies."""
        return len(self._others) + sum(place.num_bytes for place in self._places)

    def moving(self) -> list[torch.Tensor]:
        """Tensors without memory that have the shapes and types of those that :meth:`end_slice`
        returns."""
        return [torch.empty(place.shape, dtype=wide(place.dtype), device="meta") for place in self._moving]

    @torch.no_grad()
    def end_slice(self, index: int | None, factor: float) -> list[torch.Tensor]:
        """Gives the buffers their values from before the step, with which each slice begins.
        Returns the changes that the slice has made to buffers of floating-point numbers, multiplied
        by ``factor``."""
        after = [_cloned(place.buffer()) for place in self._moving] if index is not None else []
        if index == 0:
            self._after_first = [_cloned(place.buffer()) for place in self._fixed]
        self.restore()
        moves = []
        for place, now in zip(self._moving, after):
            before, kind = place.buffer(), wide(place.dtype)
            if now is None or before is None:
                moves.append(torch.zeros(place.shape, dtype=kind, device=place.device))
                continue
            # Infinite elements that are the same would give NaN.
            moves.append(torch.where(now == before, 0, now.to(kind) - before.to(kind)) * factor)
        return moves

    @torch.no_grad()
    def move(self, sums: Sequence[torch.Tensor]) -> None:
        """Adds the sums of the changes of all slices to the buffers. Other buffers, such as counts,
        get the values of the first slice, which :meth:`share` copies to the other ranks."""
        for place, moved in zip(self._moving, sums):
            buffer = place.buffer()
            if buffer is not None:
                buffer.copy_(buffer.to(moved.dtype) + moved.view(place.shape))
        for place, first in zip(self._fixed, self._after_first):
            buffer = place.buffer()
            if buffer is not None and first is not None:
                buffer.copy_(first)
        self._after_first = []

    @torch.no_grad()
    def share(
        self, group: Group, source: int, gradients: Gradients, column: tuple[Any, int] | None = None
    ) -> torch.Tensor | None:
        """Copies the buffers of rank ``source`` to all other ranks, as DDP does; an error drops the
        step. Returns the copied bytes, which are the same on all ranks. ``column``: a part of the
        group, in which ``source`` counts, and the rank in it."""
        backend, rank = (None, group.rank) if column is None else column
        row = self._row() if self._places else None
        if row is not None and self._copy(group, row, source, gradients, backend) and rank != source:
            self._take(row)
        return row if gradients.broken is None else None

    def share_parts(
        self, group: Group, parts: Sequence[tuple[int, int]], own: int, gradients: Gradients
    ) -> torch.Tensor | None:
        """Copies the buffers as :meth:`share` does, in replicas whose processes have different
        parts of the model. ``parts``: for each part the rank whose buffers are copied, and their
        number of bytes. ``own``: the index of this process' part."""
        row = None
        for index, (source, num_bytes) in enumerate(parts):
            if num_bytes == 0:
                continue
            piece = self._row() if index == own else torch.empty(num_bytes, dtype=torch.uint8, device=group.device)
            if not self._copy(group, piece, source, gradients):
                return None
            if index == own:
                row = piece
                if group.rank != source:
                    self._take(row)
        return row

    @torch.no_grad()
    def _row(self) -> torch.Tensor:
        there = torch.tensor([place.buffer() is not None for place in self._others], dtype=torch.uint8)
        parts = [place.bytes() for place in self._places]
        return torch.cat([there.to(parts[0].device), *parts])

    def _copy(self, group: Group, row: torch.Tensor, source: int, gradients: Gradients, backend: Any = None) -> bool:
        if gradients.broken is not None:
            return False
        try:
            group.begin_broadcast(row, source, backend).wait()
        except RuntimeError as error:
            gradients.broke(error)
            return False
        return True

    @torch.no_grad()
    def _take(self, row: torch.Tensor) -> None:
        # Only if there are such buffers, because on a GPU this waits for the broadcast.
        is_there = dict(zip(self._others, row[: len(self._others)].tolist() if self._others else []))
        at = len(self._others)
        for place in self._places:
            piece = row[at : at + place.num_bytes]
            at += place.num_bytes
            buffer = place.buffer()
            if buffer is not None and is_there.get(place, True):
                # A copy is aligned for its type; a piece may not be.
                buffer.copy_(piece.clone().view(place.dtype).reshape(place.shape))
