"""The length of a training and the order of its samples, from the arguments of a Trainer."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ..integration.loaders import is_sequential
from ..sampler import Sampler, steps_per_epoch


class Plan(NamedTuple):
    """The steps of a training."""

    sampler: Sampler
    steps_per_epoch: int
    steps: int


def plan_of(args: Any, loader: Any, global_batch_size: int) -> Plan:
    """The plan for ``TrainingArguments`` and the script's own loader."""
    num_samples = len(loader.dataset)
    per_epoch = steps_per_epoch(num_samples, global_batch_size, drop_last=args.dataloader_drop_last)
    steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * per_epoch)
    sampler = Sampler(
        num_samples,
        global_batch_size,
        steps=steps,
        seed=args.seed if args.data_seed is None else args.data_seed,
        # The gradient of a step is divided by the tokens or samples of all ranks.
        reduction="sum",
        in_order=is_sequential(loader),
        drop_last=args.dataloader_drop_last,
    )
    return Plan(sampler, per_epoch, steps)
