"""What modules and callbacks keep, to find out whether a part of a validation has changed it."""

from __future__ import annotations

import collections
import types
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch

# What lies deeper, the items of larger collections and the content of larger arrays are not compared.
_DEPTH, _MOST_ITEMS, _MOST_BYTES, _MOST_OBJECTS = 5, 1000, 1 << 20, 200_000
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_COLLECTIONS = (list, tuple, set, frozenset, collections.deque)
# Modules are given one by one, and the others keep nothing of a batch.
_OPAQUE = (torch.nn.Module, torch.Tensor, type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)

# The objects in an order, each with what changes if it is changed in place.
Kept = list[tuple[Any, Any]]


def kept_by(owners: Iterable[Any], opaque: tuple[type, ...]) -> Kept:
    """What the attributes of some objects hold. ``opaque``: classes whose objects may change."""
    found: Kept = []
    seen: set[int] = set()
    for owner in owners:
        _visit(vars(owner), _DEPTH, found, seen, _OPAQUE + opaque)
    return found


def is_same(one: Kept, other: Kept) -> bool:
    """Whether nothing has changed between two calls of :func:`kept_by`."""
    return len(one) == len(other) and all(
        left is right and mark == later for (left, mark), (right, later) in zip(one, other)
    )


def _visit(value: Any, depth: int, found: Kept, seen: set[int], opaque: tuple[type, ...]) -> None:
    if isinstance(value, _PLAIN):
        found.append((None, (type(value), repr(value))))
        return
    is_known = id(value) in seen
    seen.add(id(value))
    found.append((value, None if is_known else _mark(value)))
    if is_known or depth == 0 or len(found) > _MOST_OBJECTS:
        return
    for inner in _inner(value, opaque):
        _visit(inner, depth - 1, found, seen, opaque)


def _mark(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if not value.is_inference():
            return value._version
        # A tensor that the validation has made counts no versions.
        return repr(value.tolist()) if value.numel() <= _MOST_ITEMS else None
    if isinstance(value, (dict, *_COLLECTIONS)):
        return len(value)
    try:
        view = memoryview(value)  # Such as an array of NumPy.
        return zlib.crc32(view.tobytes()) if view.nbytes <= _MOST_BYTES else None
    except (TypeError, ValueError, BufferError):
        return None


def _inner(value: Any, opaque: tuple[type, ...]) -> Sequence[Any]:
    if isinstance(value, opaque):
        return ()
    if isinstance(value, (dict, *_COLLECTIONS)):
        if len(value) > _MOST_ITEMS:
            return ()
        return [*value, *value.values()] if isinstance(value, dict) else [*value]
    attributes = getattr(value, "__dict__", None)
    return [attributes] if isinstance(attributes, dict) else ()
