"""Any value as finite numbers, which the ranks can sum."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

# Numbers that are not finite, such as the best metric of an evaluation that has failed.
_NOT_FINITE = (math.inf, -math.inf, math.nan)
# The kinds of other values. An unknown one stays as it is.
_UNKNOWN, _NONE, _BOOL, _INT, _FLOAT = range(len(_NOT_FINITE), len(_NOT_FINITE) + 5)


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
