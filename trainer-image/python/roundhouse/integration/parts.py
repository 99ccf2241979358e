"""The passes of a rank's share of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Parts:
    """Collates the samples of a rank's share as passes of at most ``size`` samples each.

    The collate function of the script runs once per pass, so a pass is padded as it would be
    elsewhere, and a collate function may pack samples.
    """

    def __init__(self, collate: Callable[[list[Any]], Any], size: int):
        self._collate = collate
        self._size = size

    def __call__(self, samples: list[Any]) -> list[Any]:
        return [self._collate(samples[start : start + self._size]) for start in range(0, len(samples), self._size)]


def part_sizes(num_samples: int, size: int) -> list[int]:
    """Number of samples of each pass. A rank without samples makes one pass, which does not
    count."""
    return [min(size, num_samples - start) for start in range(0, num_samples, size)] or [1]
