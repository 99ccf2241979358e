"""Copies bytes of a GPU to host memory through two pinned buffers: while the host empties one, the
GPU fills the other.

Each copy to memory that is not pinned would wait for the GPU, and would be several times slower.
"""

from __future__ import annotations

import torch

# Size of each of the two buffers.
_NUM_BYTES = 16 << 20


class Staging:
    """The buffers of one device. :meth:`copy` may return before the bytes are copied; :meth:`flush`
    waits for all of them."""

    def __init__(self, device: torch.device, num_bytes: int = _NUM_BYTES):
        self._is_cuda = device.type == "cuda"
        self._num_bytes = num_bytes
        self._device = device
        self._buffers = [torch.empty(num_bytes, dtype=torch.uint8, pin_memory=self._is_cuda) for _ in range(2)]
        # For each buffer: the destinations of its bytes, and the event after which they are
        # complete.
        self._targets: list[list[torch.Tensor]] = [[], []]
        self._events: list[torch.cuda.Event | None] = [None, None]
        self._turn = self._filled = 0

    def copy(self, row: torch.Tensor, into: torch.Tensor) -> None:
        """Copies bytes of the device or the host to host memory, in the order of the current
        stream."""
        at = 0
        while at < row.numel():
            if self._filled == self._num_bytes:
                self._swap()
            length = min(row.numel() - at, self._num_bytes - self._filled)
            place = self._buffers[self._turn][self._filled : self._filled + length]
            place.copy_(row[at : at + length], non_blocking=True)
            self._targets[self._turn].append(into[at : at + length])
            self._filled += length
            at += length

    def flush(self) -> None:
        """Waits until all bytes are at their destination."""
        self._swap()
        self._swap()

    def _swap(self) -> None:
        """Records the event of the filled buffer, and empties the other buffer, which is filled
        next."""
        if self._is_cuda and self._filled:
            self._events[self._turn] = torch.cuda.current_stream(self._device).record_event()
        self._turn, self._filled = 1 - self._turn, 0
        arrived, self._events[self._turn] = self._events[self._turn], None
        if arrived is not None:
            arrived.synchronize()
        at = 0
        for target in self._targets[self._turn]:
            target.copy_(self._buffers[self._turn][at : at + target.numel()])
            at += target.numel()
        self._targets[self._turn] = []
