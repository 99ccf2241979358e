"""The length of a training and the order of its samples, from the script's own loader."""

from __future__ import annotations

import math
import os
from typing import Any, NamedTuple

from ..integration.loaders import is_sequential
from ..sampler import Sampler


class Plan(NamedTuple):
    """The steps of a training. ``batch_size``: the largest number of samples of one pass."""

    loader: Any
    sampler: Sampler
    batch_size: int
    steps_per_epoch: int
    steps: int


def plan_of(loader: Any, global_batch_size: int, *, epochs: int, steps: int = -1, seed: int | None = None) -> Plan:
    """The plan for a loader. ``epochs`` and ``steps`` limit the length; -1 is no limit.

    ``seed``: that of the order of the samples. The default is the one of Lightning's
    ``seed_everything``, or 0.
    """
    num_samples = len(loader.dataset)
    batch_size = min(global_batch_size, num_samples)
    rounded = math.floor if loader.drop_last else math.ceil
    steps_per_epoch = rounded(num_samples / batch_size)
    lengths = [length for length in (epochs * steps_per_epoch, steps) if length >= 0]
    total = min(lengths)
    sampler = Sampler(
        num_samples,
        global_batch_size,
        steps=total,
        seed=int(os.environ.get("PL_GLOBAL_SEED", "0")) if seed is None else seed,
        in_order=is_sequential(loader),
        drop_last=loader.drop_last,
    )
    return Plan(loader, sampler, loader.batch_size, steps_per_epoch, total)
