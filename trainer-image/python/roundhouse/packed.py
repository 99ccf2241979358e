"""Numbers, flags and small tensors of a ``state_dict`` as a row of bytes of a fixed length.

The structure (keys, lengths and strings) is fixed when a process joins; only the values change. It
does not use pickle, so data of a volume or a peer can only set numbers.

The order of a dict's keys may differ between processes, for example if the dict was built from a
set. So the row has numbers first and keys sorted, with two exceptions: objects of PyTorch, and
structures without a number, keep their own order, as all structures did in earlier versions. The
tags of the numbers show that the row is sorted.
"""

from __future__ import annotations

import copy
import hashlib
import struct
from collections.abc import Callable
from typing import Any

import torch

from .errors import StateError

_NUMBER_BYTES = 17  # A tag, and 16 bytes: a float as a double, an integer of up to 128 bits.
# The last tag is for integers that need all bits, such as the state of NumPy's generators.
_NONE, _FALSE, _TRUE, _INT, _FLOAT, _UNSIGNED = range(6)
# Offset of the tags in a row whose keys are sorted.
_SORTED = 0x80
_NUMBER = "a number"
# A longer description is stored as its digest.
_MOST_WORDS = 1 << 16


class Packed:
    """The leaves of a structure of dicts, lists and tuples.

    ``is_ordered``: whether its keys have the same order in all processes.
    """

    def __init__(self, name: str, structure: Any, *, is_ordered: bool = False):
        self.name = name
        leaves = _leaves(name, structure)
        self._sorts = not is_ordered and any(_kind(path, leaf) == _NUMBER for path, leaf in leaves)
        self._known = [(path, _kind(path, leaf)) for path, leaf in self._in_order(structure)]
        self.num_bytes = sum(_size(path, leaf) for path, leaf in leaves)

    def _in_order(self, structure: Any) -> list[tuple[str, Any]]:
        """Paths and leaves in the order of the row."""
        leaves = _leaves(self.name, structure, sorts=self._sorts)
        return [leaves[index] for index in _order(leaves, sorts=self._sorts)]

    def words(self) -> str:
        """Paths and kinds in the order of the row. The contents of strings may differ between
        processes."""
        lines: list[str] = []
        run: tuple[str, str, int, int] | None = None  # Consecutive elements of a list: path, kind, first and last index.
        for path, kind in [*self._known, ("", "")]:
            head, _, tail = path.rpartition(".")
            index = int(tail) if tail.isdecimal() else -1
            kind = "a string" if kind.startswith("the string") else kind
            if run is not None and run[:2] == (head, kind) and index == run[3] + 1:
                run = (*run[:3], index)
                continue
            if run is not None:
                lines.append(f"{run[0]}.{run[2]}{f'-{run[3]}' if run[3] > run[2] else ''}: {run[1]}")
            run = (head, kind, index, index) if index >= 0 else None
            if run is None and path:
                lines.append(f"{path}: {kind}")
        text = "; ".join(lines)
        return text if len(text) <= _MOST_WORDS else hashlib.sha256(text.encode(errors="replace")).hexdigest()

    def pack(self, structure: Any) -> bytes:
        """The bytes of the leaves. The error for a changed structure names the change."""
        leaves = self._in_order(structure)
        now = [(path, _kind(path, leaf)) for path, leaf in leaves]
        if now != self._known:
            raise StateError(_changed(self.name, self._known, now))
        tag = _SORTED if self._sorts else 0
        return b"".join(_bytes_of(leaf, tag) for _, leaf in leaves)

    def unpack(self, row: bytes, structure: Any) -> Any:
        """``structure`` with the leaves of ``row``."""
        # A row that is not sorted comes from an earlier version.
        sorts = self._sorts and self._is_sorted(row)
        leaves = _leaves(self.name, structure, sorts=sorts)
        values: dict[int, Any] = {}
        at = 0
        for index in _order(leaves, sorts=sorts):
            path, old = leaves[index]
            size = _size(path, old)
            values[index] = _of_bytes(row[at : at + size], old)
            at += size
        visited = iter(range(len(leaves)))
        return _map(self.name, structure, lambda path, old: values[next(visited)], sorts=sorts)

    def _is_sorted(self, row: bytes) -> bool:
        """Whether the row has its numbers first, with the tags of sorted rows."""
        num = sum(kind == _NUMBER for _, kind in self._known)
        return all(_SORTED <= row[at] <= _SORTED | _UNSIGNED for at in range(0, num * _NUMBER_BYTES, _NUMBER_BYTES))


def _order(leaves: list[tuple[str, Any]], *, sorts: bool) -> list[int]:
    indices = range(len(leaves))
    return sorted(indices, key=lambda index: isinstance(leaves[index][1], torch.Tensor)) if sorts else list(indices)


def _changed(name: str, before: list[tuple[str, str]], now: list[tuple[str, str]]) -> str:
    more = [(path, "") for path, _ in now[len(before) :]]
    old, new = next(((old, new) for old, new in zip(before, now) if old != new), (None, None))
    if old is None or new is None:
        path, kinds = ([*more, *before[len(now) :]] or [(name, "")])[0][0], ""
    else:
        path, kinds = old[0], f": it is {new[1]}, not {old[1]}" if old[0] == new[0] else ""
    return (
        f"{path} of rh.join(state=...) has changed its structure since the process joined{kinds}: give it all its keys, lists and "
        "tensors their lengths and types, before rh.join, or leave the entry out"
    )


def _map(path: str, value: Any, leaf: Callable[[str, Any], Any], *, sorts: bool) -> Any:
    """A copy of a structure with other leaves, visited in the order of the row."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (type(key).__name__, repr(key))) if sorts else list(value)
        mapped = {key: _map(f"{path}.{key}", value[key], leaf, sorts=sorts) for key in keys}
        if type(value) is dict:
            return {key: mapped[key] for key in value}
        # A subclass, such as OrderedDict, Counter or defaultdict, keeps its type and its
        # attributes.
        copied = copy.copy(value)
        for key, item in mapped.items():
            copied[key] = item
        return copied
    if isinstance(value, (list, tuple)):
        items = [_map(f"{path}.{index}", item, leaf, sorts=sorts) for index, item in enumerate(value)]
        if isinstance(value, list):
            return items
        # A namedtuple takes its values as separate arguments.
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return leaf(path, value)


def _leaves(path: str, structure: Any, *, sorts: bool = False) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []

    def note(path: str, leaf: Any) -> Any:
        found.append((path, leaf))
        return leaf

    _map(path, structure, note, sorts=sorts)
    return found


def tensors_of(structure: Any) -> list[torch.Tensor]:
    """The tensors among the leaves of a structure."""
    return [leaf for _, leaf in _leaves("", structure) if isinstance(leaf, torch.Tensor)]


def _kind(path: str, leaf: Any) -> str:
    """The properties of a leaf that must not change."""
    if isinstance(leaf, torch.Tensor):
        return f"a tensor of {str(leaf.dtype).removeprefix('torch.')} {list(leaf.shape)}"
    if isinstance(leaf, str):
        return f"the string {leaf!r}"
    _size(path, leaf)
    return _NUMBER


def _size(path: str, leaf: Any) -> int:
    if isinstance(leaf, str):
        return 0
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


def _bytes_of(leaf: Any, order: int) -> bytes:
    """The bytes of a leaf. ``order``: the offset of the tag of a number."""
    if isinstance(leaf, str):
        return b""
    if isinstance(leaf, torch.Tensor):
        flat = leaf.detach().cpu().contiguous().reshape(-1)
        return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    if leaf is None:
        return bytes([_NONE | order]).ljust(_NUMBER_BYTES, b"\0")
    if isinstance(leaf, bool):
        return bytes([(_TRUE if leaf else _FALSE) | order]).ljust(_NUMBER_BYTES, b"\0")
    if isinstance(leaf, int):
        tag = _INT if leaf < 2**127 else _UNSIGNED
        return bytes([tag | order]) + leaf.to_bytes(16, "little", signed=tag == _INT)
    return bytes([_FLOAT | order]) + struct.pack("<d", leaf).ljust(16, b"\0")


def _of_bytes(row: bytes, old: Any) -> Any:
    if isinstance(old, str):
        return old
    if isinstance(old, torch.Tensor):
        if not row:
            return old.clone()
        flat = torch.frombuffer(bytearray(row), dtype=torch.uint8).view(old.dtype)
        return flat.reshape(old.shape).to(old.device)
    tag, value = row[0] & ~_SORTED, row[1:]
    if tag == _NONE:
        return None
    if tag in (_FALSE, _TRUE):
        return tag == _TRUE
    if tag in (_INT, _UNSIGNED):
        return int.from_bytes(value, "little", signed=tag == _INT)
    return struct.unpack("<d", value[:8])[0]
