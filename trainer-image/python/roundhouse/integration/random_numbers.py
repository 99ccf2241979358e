"""Keeps the random numbers of the training unchanged by other code."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch

from ..seeding import seed_all


@contextlib.contextmanager
def kept_random_numbers(device: torch.device) -> Iterator[None]:
    """After this context all generators continue as if it had drawn no numbers."""
    numpy: Any = sys.modules.get("numpy")
    python, of_numpy = random.getstate(), None if numpy is None else numpy.random.get_state()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            random.setstate(python)
            if numpy is not None:
                numpy.random.set_state(of_numpy)


@contextlib.contextmanager
def same_random_numbers(device: torch.device, seed: int) -> Iterator[None]:
    """In this context all generators begin with a seed. Afterwards they continue."""
    with kept_random_numbers(device):
        seed_all(seed)
        yield
