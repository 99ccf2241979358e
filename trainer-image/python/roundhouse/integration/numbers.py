"""Values and bytes as finite numbers, which the ranks can sum."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any

# Numbers that are not finite, such as the best metric of an evaluation that has failed.
_NOT_FINITE = (math.inf, -math.inf, math.nan)
# The kinds of other values. An unknown one stays as it is.
_UNKNOWN, _NONE, _BOOL, _INT, _FLOAT = range(len(_NOT_FINITE), len(_NOT_FINITE) + 5)

# Bytes per number: 64-bit floats have all integers up to 2^53.
_BYTES = 6


def encoded(value: Any) -> list[float]:
    """A value as its kind and a finite number."""
    if value is None:
        return [_NONE, 0]
    if isinstance(value, bool):
        return [_BOOL, float(value)]
    if isinstance(value, Integral):
        return [_INT, float(value)]
    if not isinstance(value, Real):
        return [_UNKNOWN, 0]
    if math.isfinite(value):
        return [_FLOAT, float(value)]
    return [2 if math.isnan(value) else int(value < 0), 0]


def decoded(kind: float, number: float, own: Any) -> Any:
    """The value of :func:`encoded`. ``own``: what an unknown value stays."""
    if kind < len(_NOT_FINITE):
        return _NOT_FINITE[int(kind)]
    if kind == _UNKNOWN:
        return own
    kinds: dict[int, Callable[[float], Any]] = {_NONE: lambda _: None, _BOOL: bool, _INT: int, _FLOAT: float}
    return kinds[int(kind)](number)


def packed(content: bytes) -> list[float]:
    """Bytes as numbers, of which there are :func:`num_packed`."""
    return [float(int.from_bytes(content[start : start + _BYTES].ljust(_BYTES, b"\0"), "big")) for start in range(0, len(content), _BYTES)]


def num_packed(length: int) -> int:
    """How many numbers hold ``length`` bytes."""
    return -(-length // _BYTES)


def unpacked(numbers: Sequence[float], length: int) -> bytes:
    """The bytes of :func:`packed`."""
    return b"".join(int(number).to_bytes(_BYTES, "big") for number in numbers)[:length]
