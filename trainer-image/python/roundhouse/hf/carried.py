"""Numbers of a Trainer beside its model, which a new worker and a checkpoint need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..integration.numbers import decoded, encoded


class Exported:
    """The last best model that rank 0 has exported completely. The ranks load that one: the library
    would take any directory with the name of the best step."""

    # None before the first one.
    step: int | None = None


def _same(owner: Any) -> Any:
    return owner


class Carried:
    """The best metric and its step, whether the training stops, the numbers that callbacks keep,
    such as the patience of ``EarlyStoppingCallback``, and the step of the last complete export.

    ``state`` and ``control`` return the current ``TrainerState`` and ``TrainerControl``.
    ``callbacks``: those that export their state.
    An entry of ``rh.join(state=...)``.
    """

    def __init__(self, state: Callable[[], Any], control: Callable[[], Any], callbacks: Sequence[Any], exported: Exported):
        self._attributes: list[tuple[Callable[[], Any], str]] = [
            (state, "best_metric"),
            (state, "best_global_step"),
            (control, "should_training_stop"),
        ]
        for callback in callbacks:
            names = sorted(callback.state().get("attributes", {}))
            self._attributes += [(partial(_same, callback), name) for name in names]
        self._attributes.append((partial(_same, exported), "step"))

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
