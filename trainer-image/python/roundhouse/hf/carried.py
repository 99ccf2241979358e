"""Numbers of a Trainer beside its model, which a new worker and a checkpoint need."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
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


def _same(owner: Any) -> Any:
    return owner


class Carried:
    """The best metric and its step, whether the training stops, and the numbers that callbacks
    keep, such as the patience of ``EarlyStoppingCallback``.

    ``state`` and ``control`` return the current ``TrainerState`` and ``TrainerControl``.
    ``callbacks``: those that export their state.
    An entry of ``rh.join(state=...)``.
    """

    def __init__(self, state: Callable[[], Any], control: Callable[[], Any], callbacks: Sequence[Any]):
        self._attributes: list[tuple[Callable[[], Any], str]] = [
            (state, "best_metric"),
            (state, "best_global_step"),
            (control, "should_training_stop"),
        ]
        for callback in callbacks:
            names = sorted(callback.state().get("attributes", {}))
            self._attributes += [(partial(_same, callback), name) for name in names]

    def numbers(self) -> list[float]:
        """All values, as finite numbers. Their meaning and their order never change."""
        return [number for owner, name in self._attributes for number in encoded(getattr(owner(), name, None))]

    def load(self, numbers: Sequence[float]) -> None:
        """Sets all values."""
        for (owner, name), kind, number in zip(self._attributes, numbers[::2], numbers[1::2]):
            setattr(owner(), name, decoded(kind, number, getattr(owner(), name, None)))

    def state_dict(self) -> dict[str, list[float]]:
        return {"numbers": self.numbers()}

    def load_state_dict(self, loaded: dict[str, list[float]]) -> None:
        self.load(loaded["numbers"])
