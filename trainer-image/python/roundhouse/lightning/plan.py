"""The length of a training and the order of its samples, from the script's own loader."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from ..integration.loaders import is_sequential
from ..sampler import Sampler, steps_per_epoch


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
    per_epoch = steps_per_epoch(num_samples, global_batch_size, drop_last=loader.drop_last)
    lengths = [length for length in (epochs * per_epoch, steps) if length >= 0]
    total = min(lengths)
    sampler = Sampler(
        num_samples,
        global_batch_size,
        steps=total,
        seed=int(os.environ.get("PL_GLOBAL_SEED", "0")) if seed is None else seed,
        in_order=is_sequential(loader),
        drop_last=loader.drop_last,
    )
    return Plan(loader, sampler, loader.batch_size, per_epoch, total)
