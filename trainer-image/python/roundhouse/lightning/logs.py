"""The values that a module logs, over all passes and all ranks."""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Sequence
from typing import Any

import torch

from ..integration.numbers import decoded, encoded
from ..integration.waiting import may_lose_peer
from ..job import Job
from ..sampler import Step
from .internals import Snapshot, entries_of, evaluated, is_log_due, set_evaluated


def reduced(kind: str, values: Sequence[float], weights: Sequence[float]) -> float:
    """One value of several. ``kind``: mean, sum, min or max. The weights are those of a mean; a
    value without a weight does not count."""
    known = [(value, weight) for value, weight in zip(values, weights) if weight > 0]
    if not known or any(math.isnan(value) for value, _ in known):
        return math.nan
    if kind == "mean":
        return sum(value * weight for value, weight in known) / sum(weight for _, weight in known)
    alone = [value for value, _ in known]
    return sum(alone) if kind == "sum" else min(alone) if kind == "min" else max(alone)


def gathered(job: Job, numbers: Sequence[float]) -> list[list[float]]:
    """The numbers of each rank, in the order of the ranks. All ranks give as many."""
    row = [part for number in numbers for part in encoded(number)]
    before, after = job.rank * len(row), (job.world_size - job.rank - 1) * len(row)
    summed = job.sum([0.0] * before + row + [0.0] * after)
    found = [decoded(kind, number, math.nan) for kind, number in zip(summed[::2], summed[1::2])]
    return [found[start : start + len(numbers)] for start in range(0, len(found), len(numbers))]


class Exchange:
    """Exchanges named values between the ranks. ``job`` has more than one."""

    def __init__(self, job: Job):
        self._job = job
        self._has_warned = False

    def of_all(self, names: Sequence[str], numbers: Sequence[float]) -> list[list[float]] | None:
        """The numbers of each rank. None if the ranks have not the same names."""
        digest = float(zlib.crc32("\n".join(names).encode()))
        if len({row[0] for row in gathered(self._job, [digest])}) == 1:
            return gathered(self._job, numbers)
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"roundhouse.lightning: the workers have not logged the same values, so those of each worker stay its own; this "
                f"one has logged {', '.join(names)}",
                stacklevel=2,
            )
        return None


class TrainingLogs:
    """What ``training_step`` logs.

    A value of a step is the mean of its passes, or their sum, least or greatest value. The ranks
    exchange the values in the steps that loggers write, and at the end of an epoch.
    """

    def __init__(self, trainer: Any, metrics: list[Any], job: Job):
        self._trainer, self._metrics, self._job = trainer, metrics, job
        self._exchange = Exchange(job)
        self._snapshot: Snapshot | None = None
        # The values of each pass of the step, its loss, and its number of samples.
        self._passes: list[tuple[dict[str, torch.Tensor], torch.Tensor, int]] = []
        # Samples of this rank in this epoch.
        self._num_samples = 0

    def begin(self) -> None:
        """Must be called before the passes of a step, also if they are repeated."""
        if self._snapshot is None:
            self._snapshot = Snapshot(self._trainer, self._metrics)
        else:
            self._snapshot.restore()
        self._passes = []

    def begin_pass(self) -> None:
        """Must be called before each pass."""
        for entry in entries_of(self._trainer).values():
            if entry.on_step:
                entry.last = None

    def end_pass(self, loss: torch.Tensor, num_samples: int) -> None:
        """Must be called after each pass."""
        values = {key: entry.last for key, entry in entries_of(self._trainer).items() if entry.on_step}
        self._passes.append(({key: value for key, value in values.items() if value is not None}, loss, num_samples))

    def drop(self) -> None:
        """Must be called if the step does not count for this rank."""
        if self._snapshot is not None:
            self._snapshot.restore()
            self._snapshot = None

    def commit(self, step: Step) -> None:
        """Must be called when the step is committed."""
        if step.size == 0:
            self.drop()  # Its sample does not count.
        self._snapshot = None
        self._merge()
        self._num_samples += step.size
        if self._job.world_size > 1 and is_log_due(self._trainer, step):
            self._set_losses()
            with may_lose_peer():
                self._share_step(step)

    def end_epoch(self) -> None:
        """Must be called at the end of an epoch by the ranks that have made its last step."""
        if self._job.world_size > 1:
            with may_lose_peer():
                self._share_epoch()
        self.leave_epoch()

    def leave_epoch(self) -> None:
        """Must be called at the end of an epoch by a rank that has missed its last step."""
        self._num_samples = 0

    def _merge(self) -> None:
        if len(self._passes) < 2:
            return
        for key, entry in entries_of(self._trainer).items():
            known = [(values[key], size) for values, _, size in self._passes if key in values]
            if entry.on_step and known:
                numbers = reduced(entry.kind, [float(value) for value, _ in known], [size for _, size in known])
                entry.last = torch.full_like(known[-1][0], numbers)

    def _set_losses(self) -> None:
        """Sets the values that are the loss to that of all ranks, which the commit has found, also
        if a rank is lost before the exchange."""
        for key, entry in entries_of(self._trainer).items():
            last, mean = entry.last, self._job.loss
            if entry.kind != "mean" or last is None or mean is None:
                continue
            pairs = [(values.get(key), loss) for values, loss, _ in self._passes]
            if all(value is not None and float(value) == float(loss) for value, loss in pairs):
                entry.last = torch.full_like(last, mean)

    def _share_step(self, step: Step) -> None:
        entries = {key: entry for key, entry in entries_of(self._trainer).items() if entry.on_step}
        numbers = [math.nan if entry.last is None else float(entry.last) for entry in entries.values()]
        rows = self._exchange.of_all(list(entries), [*numbers, float(step.size)])
        if rows is None:
            return
        *columns, sizes = zip(*rows)
        for entry, values in zip(entries.values(), columns):
            if entry.last is not None:
                entry.last = torch.full_like(entry.last, reduced(entry.kind, values, sizes))

    def _share_epoch(self) -> None:
        entries = {key: entry for key, entry in entries_of(self._trainer).items() if entry.on_epoch}
        numbers = [entry.sums() if entry.has_sums else (entry.computed(), 0.0) for entry in entries.values()]
        flat = [number for pair in numbers for number in pair]
        rows = self._exchange.of_all(list(entries), [*flat, float(self._num_samples)])
        if rows is None:
            return
        *columns, sizes = zip(*rows)
        for entry, values, weights in zip(entries.values(), columns[::2], columns[1::2]):
            if not entry.has_sums:
                entry.set_computed(reduced("mean", values, sizes))
            elif entry.kind == "mean":
                entry.set_sums(sum(values), sum(weights))
            else:
                entry.set_sums(reduced(entry.kind, values, [1.0] * len(values)), 0.0)


def adopt_evaluation(job: Job, trainer: Any) -> None:
    """All ranks take the metrics of rank 0, by which callbacks decide. Each has evaluated the whole
    data set, but devices may round differently."""
    values = evaluated(trainer)
    rows = Exchange(job).of_all(list(values), [float(value) for value in values.values()])
    for key, value in zip(values, rows[0] if rows else ()):
        set_evaluated(trainer, key, value)
