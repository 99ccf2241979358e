"""What the callbacks of a Trainer keep, which a new worker and a checkpoint need: the patience of
``EarlyStopping``, the files of ``ModelCheckpoint``."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from typing import Any

import torch

from ..job import Job
from .internals import load_callback

# Bytes of the row. They are zero after the text.
_LENGTH = 1 << 16
_TENSOR = "tensor of"


def _plain(value: Any) -> Any:
    """A value as what JSON has. Raises TypeError if that is not possible."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.Tensor):
        return {_TENSOR: str(value.dtype).removeprefix("torch."), "values": value.tolist()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(item) for key, item in value.items()}
    raise TypeError(f"a {type(value).__name__}")


def _restored(value: Any) -> Any:
    if isinstance(value, list):
        return [_restored(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return torch.tensor(value["values"], dtype=getattr(torch, value[_TENSOR]))
    return {key: _restored(item) for key, item in value.items()}


class CallbackStates:
    """The states of callbacks as a row of bytes of a fixed length, as an entry of
    ``rh.join(state=...)``, and whether the training stops early.

    They are those of rank 0 at the last call of :meth:`take`, because all ranks must have the same
    state, and clocks and files may differ. JSON can only set values, other than pickle.
    ``callbacks``: pairs of a name, which is the same in all workers, and a callback. ``trainer``
    has ``should_stop``.
    """

    def __init__(self, callbacks: Iterable[tuple[str, Any]], trainer: Any):
        self._callbacks = dict(callbacks)
        self._trainer = trainer
        # Callbacks whose state is not sent.
        self._left_out: set[str] = set()
        self._text = self._current()

    def take(self, job: Job) -> None:
        """Takes the states of rank 0. All ranks must call it at the same place.

        Raises :class:`~roundhouse.errors.PeerLost` as ``job.sum`` does.
        """
        text = self._current() if job.rank == 0 else b""
        if job.world_size > 1:
            length = int(job.sum([float(len(text))])[0])
            text = bytes(map(int, job.sum([float(byte) for byte in text] or [0.0] * length)))
        self._text = text
        if job.rank != 0:
            self._apply()

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"row": torch.frombuffer(bytearray(self._text.ljust(_LENGTH, b"\0")), dtype=torch.uint8)}

    def load_state_dict(self, loaded: dict[str, torch.Tensor]) -> None:
        self._text = loaded["row"].numpy().tobytes().rstrip(b"\0")
        self._apply()

    def _apply(self) -> None:
        found = json.loads(self._text)
        self._trainer.should_stop = found["stops"]
        for name, state in found["states"].items():
            if name in self._callbacks:
                load_callback(self._callbacks[name], _restored(state))

    def _current(self) -> bytes:
        states: dict[str, Any] = {}
        for name, callback in self._callbacks.items():
            try:
                states[name] = _plain(callback.state_dict())
            except TypeError as error:
                self._leave_out(name, f"it has {error}, and numbers, strings, tensors, lists and dicts alone can be sent")
        while len(text := self._encoded(states)) > _LENGTH:
            name = max(states, key=lambda name: len(json.dumps(states[name])))
            del states[name]
            self._leave_out(name, f"the states of all callbacks have more than {_LENGTH} bytes")
        return text

    def _encoded(self, states: dict[str, Any]) -> bytes:
        return json.dumps({"stops": bool(self._trainer.should_stop), "states": states}).encode()

    def _leave_out(self, name: str, why: str) -> None:
        if name not in self._left_out:
            self._left_out.add(name)
            warnings.warn(f"roundhouse.lightning: new workers do not get the state of the callback {name}: {why}", stacklevel=2)
