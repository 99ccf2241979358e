"""Random numbers as functions of the step and of the sample, so that a step that is done again, and a training that is
continued, draw the same ones."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

_MASK = (1 << 64) - 1


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
    """Seeds Python, NumPy if the script uses it, and PyTorch on the CPU and on GPUs that are in use."""
    random.seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)
    # torch.manual_seed asks every kind of device, which takes longer than a small step.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
