"""Random numbers as functions of the step and of the sample, so that a repeated step and a resumed
training draw the same numbers."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

_MASK = (1 << 64) - 1
# An arbitrary seed: the generators' output after it shows whether code has drawn from them.
_PROBE = 0x524F554E
_HAS_MPS = torch.backends.mps.is_available()
_NUMBER = torch.zeros((), dtype=torch.int64, device="cpu")

_is_first = True


def mixed(*numbers: int) -> int:
    """64 bits that depend on all of these numbers (SplitMix64: Steele, Lea and Flood, 2014)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def seed_all(seed: int) -> None:
    """Seeds Python, NumPy if the script uses it, and PyTorch on all devices that this process uses.

    A device that the process uses later starts with the first of all seeds.
    """
    global _is_first
    random.seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)
    if _is_first:
        _is_first = False
        torch.manual_seed(seed)
        return
    # torch.manual_seed formats a stack trace for each unused kind of device, which takes 0.1 ms,
    # more than all other work here.
    torch.default_generator.manual_seed(seed)
    for devices in (torch.cuda, torch.xpu):
        if devices.is_initialized():
            devices.manual_seed_all(seed)
    if _HAS_MPS:
        torch.mps.manual_seed(seed)


class Probe:
    """Detects whether code draws random numbers between :meth:`begin` and :meth:`was_drawn_from`.

    It changes the states of the generators.
    """

    def __init__(self) -> None:
        seed_all(_PROBE)
        self._untouched = _next_numbers()

    def begin(self) -> None:
        """Sets all generators to a known state."""
        seed_all(_PROBE)

    def was_drawn_from(self) -> bool:
        """Whether the state of a generator has changed. Also True if there is a new generator."""
        return _next_numbers() != self._untouched


def _next_numbers() -> list[Any]:
    """The next number or the state of each generator that :func:`seed_all` seeds."""
    numpy: Any = sys.modules.get("numpy")
    found: list[Any] = [random.getrandbits(64), None if numpy is None else numpy.random.random()]
    found.append(_NUMBER.random_(generator=torch.default_generator).item())
    for devices in (torch.cuda, torch.xpu):
        found.append(devices.get_rng_state().tolist() if devices.is_initialized() else None)
    if _HAS_MPS:
        found.append(torch.mps.get_rng_state().tolist())
    return found
