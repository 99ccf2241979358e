"""The length of a training and the order of its samples, from the arguments of a Trainer."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ..integration.loaders import is_sequential
from ..sampler import Sampler


class Plan(NamedTuple):
    """The steps of a training."""

    sampler: Sampler
    steps_per_epoch: int
    steps: int


def plan_of(args: Any, loader: Any, global_batch_size: int) -> Plan:
    """The plan for ``TrainingArguments`` and the script's own loader."""
    num_samples = len(loader.dataset)
    batch_size = min(global_batch_size, num_samples)
    rounded = math.floor if args.dataloader_drop_last else math.ceil
    steps_per_epoch = rounded(num_samples / batch_size)
    steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * steps_per_epoch)
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
    return Plan(sampler, steps_per_epoch, steps)
