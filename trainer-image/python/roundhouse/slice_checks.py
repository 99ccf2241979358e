"""What would not be equal for every number of ranks with ``job.sampler(..., slices=...)``, and is
refused before the first step."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import torch
from torch.nn.parallel import DistributedDataParallel

from .errors import ConfigError
from .gradients import Gradients
from .replica import Replica


def check_slices(
    modules: Sequence[torch.nn.Module], replica: Replica | None, gradients: Gradients, *, is_manual: bool, seeds: bool
) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a script that cannot be exact, and sets
    the number of threads."""
    where = "job.sampler(..., slices=...)"
    if is_manual:
        raise ConfigError(
            f'{where} with rh.join(gradients="manual"): the job sums the gradients of slices; leave out gradients, and remove the '
            "sums of the script"
        )
    if not seeds:
        raise ConfigError(
            f"{where} with rh.join(seed_each_step=False): dropout would draw other numbers on another rank; leave out seed_each_step"
        )
    if replica is not None and (replica.layout.has_own_gradients or any(model.factors for model in gradients.models)):
        raise ConfigError(
            f"{where} with pipeline, context or expert parallelism: gradients of slices are summed for FSDP2 and tensor parallelism "
            "only; leave out slices"
        )
    for module in (inner for own in modules for inner in own.modules()):
        if isinstance(module, DistributedDataParallel):
            raise ConfigError(f"{where} with a model in DistributedDataParallel, which sums the gradients of a pass: use job.model alone")
        if isinstance(module, torch.nn.SyncBatchNorm):
            raise ConfigError(
                f"{where} with SyncBatchNorm, whose statistics are those of several ranks: use BatchNorm, whose statistics are then "
                "those of a slice"
            )
    if "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() != 1:
        # Kernels divide sums among threads. Their number must not depend on that of processes.
        torch.set_num_threads(1)
        print("slices: this process computes with one thread; set OMP_NUM_THREADS to change it", file=sys.stderr, flush=True)
