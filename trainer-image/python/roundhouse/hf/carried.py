"""Numbers of a Trainer beside its model, which a new worker and a checkpoint need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Carried:
    """The best metric and its step, and the numbers that callbacks keep, such as the patience of
    ``EarlyStoppingCallback``.

    ``state``: returns the current ``TrainerState``. ``callbacks``: those that export their state.
    An entry of ``rh.join(state=...)``.
    """

    def __init__(self, state: Callable[[], Any], callbacks: Sequence[Any]):
        self._state = state
        self._attributes = [
            (callback, name)
            for callback in callbacks
            for name, value in sorted(callback.state().get("attributes", {}).items())
            if isinstance(value, (bool, int, float))
        ]

    def numbers(self) -> list[float]:
        """All numbers, as finite ones. Their meaning and their order never change."""
        state = self._state()
        optional = (state.best_metric, state.best_global_step)
        known = [number for value in optional for number in (float(value is not None), float(value or 0))]
        return known + [float(getattr(callback, name)) for callback, name in self._attributes]

    def load(self, numbers: Sequence[float]) -> None:
        """Sets all numbers."""
        state = self._state()
        has_metric, metric, has_step, step, *others = numbers
        state.best_metric = metric if has_metric else None
        state.best_global_step = int(step) if has_step else None
        for (callback, name), number in zip(self._attributes, others):
            setattr(callback, name, type(getattr(callback, name))(number))

    def state_dict(self) -> dict[str, list[float]]:
        return {"numbers": self.numbers()}

    def load_state_dict(self, loaded: dict[str, list[float]]) -> None:
        self.load(loaded["numbers"])
