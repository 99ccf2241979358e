"""Numbers, flags and small tensors of a ``state_dict`` as a row of bytes of a fixed length.

The structure, which is keys, lengths and strings, is fixed when a process joins; what is in it changes. No pickle: what
a volume or a peer sends can only set numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import torch

from .errors import StateError

_NUMBER_BYTES = 17  # A tag, and 16 bytes: a float as a double, an integer of up to 128 bits.
# The last one is for integers that need all bits, such as the state of NumPy's generators.
_NONE, _FALSE, _TRUE, _INT, _FLOAT, _UNSIGNED = range(6)


class Packed:
    """The leaves of a structure of dicts, lists and tuples."""

    def __init__(self, name: str, structure: Any):
        self.name = name
        self._skeleton = _skeleton(structure)
        self._leaves: list[tuple[str, int]] = []
        for path, leaf in _leaves(name, structure):
            self._leaves.append((path, _size(path, leaf)))
        self.num_bytes = sum(size for _, size in self._leaves)

    def pack(self, structure: Any) -> bytes:
        """The leaves' bytes. A structure that has changed is named."""
        parts = []
        expected = iter(self._leaves)
        for path, leaf in _leaves(self.name, structure):
            known = next(expected, None)
            size = _size(path, leaf)
            if known != (path, size):
                raise StateError(_changed(path if known is None else known[0]))
            parts.append(_bytes_of(leaf))
        left = next(expected, None)
        if left is not None or _skeleton(structure) != self._skeleton:
            raise StateError(_changed(self.name if left is None else left[0]))
        return b"".join(parts)

    def unpack(self, row: bytes, structure: Any) -> Any:
        """``structure`` with the leaves of ``row``."""
        at = 0

        def leaf(path: str, old: Any) -> Any:
            nonlocal at
            size = _size(path, old)
            new = _of_bytes(row[at : at + size], old)
            at += size
            return new

        return _map(self.name, structure, leaf)


def _changed(path: str) -> str:
    return (
        f"{path} of rh.join(state=...) has changed its structure since the process joined: give it all its keys, lists and "
        "tensors their lengths, before rh.join, or leave the entry out"
    )


def _map(path: str, value: Any, leaf: Callable[[str, Any], Any]) -> Any:
    if isinstance(value, dict):
        mapped = {key: _map(f"{path}.{key}", item, leaf) for key, item in value.items()}
        # A subclass, such as OrderedDict or Counter, keeps its type.
        return mapped if type(value) is dict else type(value)(mapped)
    if isinstance(value, (list, tuple)):
        items = [_map(f"{path}.{index}", item, leaf) for index, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, str):
        return value
    return leaf(path, value)


def _leaves(path: str, structure: Any) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []

    def note(path: str, leaf: Any) -> Any:
        found.append((path, leaf))
        return leaf

    _map(path, structure, note)
    return found


def tensors_of(structure: Any) -> list[torch.Tensor]:
    """The tensors among the leaves of a structure."""
    return [leaf for _, leaf in _leaves("", structure) if isinstance(leaf, torch.Tensor)]


def _skeleton(structure: Any) -> Any:
    return _map("", structure, lambda path, leaf: None)


def _size(path: str, leaf: Any) -> int:
    if isinstance(leaf, torch.Tensor):
        return leaf.numel() * leaf.element_size()
    if isinstance(leaf, int) and not -(2**127) <= leaf < 2**128:
        raise StateError(f"{path} of rh.join(state=...) is an integer of {leaf.bit_length()} bits: at most 128 can be kept")
    if leaf is None or isinstance(leaf, (bool, int, float)):
        return _NUMBER_BYTES
    raise StateError(
        f"{path} of rh.join(state=...) is a {type(leaf).__name__}: only tensors, numbers, strings, None, and dicts, lists "
        "and tuples of them can be kept; leave it out of its state_dict, or the entry out of state"
    )


def _bytes_of(leaf: Any) -> bytes:
    if isinstance(leaf, torch.Tensor):
        flat = leaf.detach().cpu().contiguous().reshape(-1)
        return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    if leaf is None:
        return bytes([_NONE]).ljust(_NUMBER_BYTES, b"\0")
    if isinstance(leaf, bool):
        return bytes([_TRUE if leaf else _FALSE]).ljust(_NUMBER_BYTES, b"\0")
    if isinstance(leaf, int):
        tag = _INT if leaf < 2**127 else _UNSIGNED
        return bytes([tag]) + leaf.to_bytes(16, "little", signed=tag == _INT)
    return bytes([_FLOAT]) + struct.pack("<d", leaf).ljust(16, b"\0")


def _of_bytes(row: bytes, old: Any) -> Any:
    if isinstance(old, torch.Tensor):
        if not row:
            return old.clone()
        flat = torch.frombuffer(bytearray(row), dtype=torch.uint8).view(old.dtype)
        return flat.reshape(old.shape).to(old.device)
    tag, value = row[0], row[1:]
    if tag == _NONE:
        return None
    if tag in (_FALSE, _TRUE):
        return tag == _TRUE
    if tag in (_INT, _UNSIGNED):
        return int.from_bytes(value, "little", signed=tag == _INT)
    return struct.unpack("<d", value[:8])[0]
