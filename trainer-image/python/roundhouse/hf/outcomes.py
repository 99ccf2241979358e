"""Packs what ``Trainer.prediction_step`` returns for a batch into a row of bytes, and unpacks it:
loss, logits and labels, which are tensors in tuples, lists and dicts.

Unlike pickle, a row can only create tensors and these containers.
"""

from __future__ import annotations

import json
from typing import Any

import torch

# Bytes at the start of a row that hold the length of its header.
_LENGTH = 8


def packed(outcome: Any) -> torch.Tensor:
    """An outcome as a row of bytes in host memory: a header, and the contents of the tensors.
    Raises TypeError for another kind of object."""
    contents: list[torch.Tensor] = []
    header = json.dumps(_described(outcome, contents)).encode()
    begin = len(header).to_bytes(_LENGTH, "little") + header
    return torch.cat([torch.frombuffer(bytearray(begin), dtype=torch.uint8), *contents])


def unpacked(row: torch.Tensor) -> Any:
    """The outcome of a row, in host memory."""
    end = _LENGTH + int.from_bytes(row[:_LENGTH].numpy().tobytes(), "little")
    return _Contents(row[end:]).restored(json.loads(row[_LENGTH:end].numpy().tobytes()))


def _described(value: Any, contents: list[torch.Tensor]) -> Any:
    """A value as JSON. Its tensors are added to ``contents``."""
    kind = type(value)
    if value is None:
        return None
    if kind is torch.Tensor and _is_plain(value):
        own = value.detach().resolve_conj().resolve_neg().cpu()
        contents.append(own.reshape(-1).contiguous().view(torch.uint8))
        return {"tensor": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
    if kind in (tuple, list):
        return {kind.__name__: [_described(item, contents) for item in value]}
    if kind is dict and all(type(key) is str for key in value):
        return {"dict": {key: _described(item, contents) for key, item in value.items()}}
    raise TypeError(f"a {kind.__name__}")


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is its elements, one after another in memory."""
    is_other = tensor.is_quantized or tensor.is_nested or tensor.is_meta
    return tensor.layout is torch.strided and not is_other


class _Contents:
    """The contents of tensors, one after another."""

    def __init__(self, row: torch.Tensor):
        self._row, self._place = row, 0

    def restored(self, found: Any) -> Any:
        if found is None:
            return None
        if "tensor" in found:
            return self._tensor(getattr(torch, found["tensor"]), torch.Size(found["shape"]))
        if "dict" in found:
            return {key: self.restored(item) for key, item in found["dict"].items()}
        kind = tuple if "tuple" in found else list
        return kind(self.restored(item) for item in found[kind.__name__])

    def _tensor(self, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
        begin, self._place = self._place, self._place + shape.numel() * dtype.itemsize
        # A copy begins at an address that fits the type.
        return self._row[begin : self._place].clone().view(dtype).reshape(shape)
