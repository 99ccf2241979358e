"""The losses of an evaluation set, which the ranks compute together."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .._native import SampleSchedule
from ..integration.rows import shared_rows
from ..replica import Replica


def part_of(num_batches: int, rank: int, world_size: int, replica: Replica | None) -> tuple[range, int]:
    """The batches that a rank computes, and its number of passes, which is the same for all
    processes of a replica."""
    ranks = [rank] if replica is None else replica.data_ranks(rank)
    parts = {one: range(*SampleSchedule.part(0, num_batches, one, world_size)) for one in ranks}
    return parts[rank], max(map(len, parts.values()))


class BatchLosses:
    """The losses of all batches of an evaluation set.

    The batches are the same for every number of ranks, and a sum with zeros is exact. So the mean
    is the same to the last bit, whichever rank has computed which batch.
    """

    def __init__(self, num_batches: int):
        self._losses = [0.0] * num_batches
        # Numbers of samples; negative for a loss that is not finite, and 0 for none.
        self._sizes = [0.0] * num_batches
        self._known = [False] * num_batches
        # Whether all ranks know all losses.
        self.is_shared = False

    def missing(self) -> Iterator[range]:
        """The batches that are not known yet, as ranges."""
        start = 0
        for index, is_known in enumerate([*self._known, True]):
            if is_known:
                if start < index:
                    yield range(start, index)
                start = index + 1

    def add(self, index: int, loss: float | None, num_samples: int) -> None:
        """Adds a batch that this rank has computed. ``loss`` is the mean over its samples."""
        self._known[index] = True
        if loss is None:
            return
        is_finite = math.isfinite(loss)
        self._losses[index] = loss if is_finite else 0.0
        self._sizes[index] = float(num_samples if is_finite else -num_samples)

    def share(self, summed: Callable[[Sequence[float]], list[float]]) -> None:
        """Exchanges the losses with all ranks. ``summed`` sums numbers over the ranks."""
        numbers = summed([*self._losses, *self._sizes])
        half = len(self._losses)
        self._losses, self._sizes = numbers[:half], numbers[half:]
        self._known = [True] * half
        self.is_shared = True

    def share_known(self, summed: Callable[[Sequence[float]], list[float]]) -> None:
        """Exchanges the losses that are known, so that all processes of a replica compute the same
        rest. ``summed`` sums numbers over the replica."""
        numbers = summed([*self._losses, *self._sizes, *map(float, self._known)])
        length = len(self._losses)
        self._losses, self._sizes = numbers[:length], numbers[length : 2 * length]
        self._known = [number > 0 for number in numbers[2 * length :]]

    def mean(self, *, skips_infinite: bool) -> float | None:
        """The mean over the samples. None if no batch has a loss."""
        finite = [(loss * size, size) for loss, size in zip(self._losses, self._sizes) if size > 0]
        if any(size < 0 for size in self._sizes) and not (skips_infinite and finite):
            return math.nan
        return sum(total for total, _ in finite) / sum(size for _, size in finite) if finite else None


def adopt(metrics: dict[str, Any], rank: int, summed: Callable[[Sequence[float]], list[float]]) -> None:
    """Replaces the metrics of all ranks by those of rank 0, because devices may round differently.
    All ranks decide by them. A value that JSON cannot carry stays that of this rank. ``rank``: the
    part of the samples that this process computes."""
    row = None
    if rank == 0:
        # A value in a list, and an empty list if it cannot be sent.
        sent = {name: [value] if _is_plain(value) else [] for name, value in metrics.items()}
        row = torch.frombuffer(bytearray(json.dumps(sent), "utf-8"), dtype=torch.uint8)
    found = shared_rows([row], summed)
    if found is None or found[0] is None:
        return  # They are too large.
    first = json.loads(bytes(found[0].tolist()))
    own = dict(metrics)
    metrics.clear()
    for name, value in first.items():
        if value or name in own:
            metrics[name] = value[0] if value else own[name]


def _is_plain(value: Any) -> bool:
    """Whether JSON carries a value with its type."""
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(type(name) is str for name in value) and all(map(_is_plain, value.values()))
    return type(value) in (bool, int, float, str, type(None))


def arguments_of_evaluation(
    prediction_loss_only: bool | None = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
) -> tuple[bool | None, Any, str]:
    """The arguments of ``Trainer.evaluation_loop`` after the first two."""
    return prediction_loss_only, ignore_keys, metric_key_prefix
