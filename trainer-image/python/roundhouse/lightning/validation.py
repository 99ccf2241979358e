"""Validations whose batches the ranks divide.

Each rank runs ``validation_step`` for its part of the batches and keeps what it logs, without
reducing it. The ranks exchange these values, and each rank then logs those of all batches in their
order. So Lightning itself reduces them, and the metrics are those of one process bit for bit.
"""

from __future__ import annotations

import contextlib
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from .._native import SampleSchedule
from ..integration.loaders import batches_of
from ..integration.random_numbers import kept_random_numbers
from ..integration import rows
from ..integration.waiting import may_lose_peer
from ..job import Job
from .logged import Logged, batches_of_row, row_of
from .logs import gathered
from .validation_internals import log_again, logged_by, obstacle_to


class Validations:
    """The validations of a training. ``is_with_others()``: whether all ranks are at this place."""

    def __init__(self, job: Job, trainer: Any, is_with_others: Callable[[], bool]):
        self._job, self._trainer, self._is_with_others = job, trainer, is_with_others
        self._loop = trainer.fit_loop.epoch_loop.val_loop
        self._reset, self._loop.reset = self._loop.reset, self._begin
        self._division: _Division | None = None
        # The script's loaders, while there is a division.
        self._whole: Any = None
        self._has_warned = False

    def _begin(self) -> None:
        """Chooses the loaders of a validation."""
        self.end()
        obstacle = obstacle_to(self._trainer)
        if obstacle is not None:
            self._warn(obstacle)
        if self._is_with_others() and self._job.world_size > 1:
            with may_lose_peer():
                self._divide(obstacle)
        self._reset()

    def _divide(self, obstacle: str | None) -> None:
        """Divides the batches if all ranks can."""
        whole = self._loop._combined_loader
        limits: list[int] = []
        if obstacle is None:
            limits = [int(min(len(loader), limit)) for loader, limit in zip(whole.flattened, self._loop.max_batches)]
        # Some scripts give a callback to one rank alone.
        digest = 0.0 if obstacle is not None else 1.0 + zlib.crc32(repr(limits).encode())
        of_all = {row[0] for row in gathered(self._job, [digest])}
        if 0.0 in of_all:
            self._warn("another worker cannot divide it; give all workers the same callbacks and loaders")
        elif len(of_all) > 1:
            self._warn("the workers have validation sets of different lengths; give all the same samples")
        else:
            self._whole, self._division = whole, _Division(self._job, self._trainer, self._warn, whole.flattened, limits)
            self._loop._combined_loader = CombinedLoader(whole.iterables, "sequential")
            self._loop._combined_loader.flattened = self._division.stand_ins()

    def _warn(self, obstacle: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            rank_zero_warn(f"roundhouse.lightning: divide_validation=True: each worker runs the whole validation: {obstacle}")

    def end(self) -> bool:
        """Must be called at the end of a validation. Returns whether all ranks have its result."""
        division, self._division = self._division, None
        if division is None:
            return False
        self._loop._combined_loader = self._whole
        return division.is_shared

    def close(self) -> None:
        """Must be called at the end of the training."""
        self.end()
        del self._loop.reset


class BatchStandIn:
    """Takes the place of a batch in Lightning's loop, and logs the values of that batch."""

    def __init__(self, division: _Division, index: int):
        self._division, self._index = division, index

    def log(self, module: Any) -> None:
        """Logs the values of the batch."""
        log_again(module, self._division.logged(self._index))


class _LoaderStandIn:
    """What the loop reads in place of a loader."""

    def __init__(self, loader: Any, division: _Division, indices: range):
        self._loader, self._division, self._indices = loader, division, indices

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[BatchStandIn]:
        return (BatchStandIn(self._division, index) for index in self._indices)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Division:
    """One validation. ``limits``: the number of batches of each loader. Batches are numbered
    over all loaders. ``warn``: called with the reason why they are not divided."""

    def __init__(self, job: Job, trainer: Any, warn: Callable[[str], None], loaders: list[Any], limits: list[int]):
        self._job, self._trainer, self._warn = job, trainer, warn
        starts = [0, *itertools.accumulate(limits)]
        self._parts = [(loader, range(start, end)) for loader, start, end in zip(loaders, starts, starts[1:])]
        self._all = range(starts[-1])
        self._known: dict[int, list[Logged]] = {}
        # Whether all ranks know the values of all batches.
        self.is_shared = False

    def stand_ins(self) -> list[Any]:
        """What the loop reads in place of the loaders."""
        return [_LoaderStandIn(loader, self, indices) for loader, indices in self._parts]

    def logged(self, index: int) -> list[Logged]:
        """What a batch has logged."""
        if not self._known:
            # The ranks draw different random numbers in here, and the same ones afterwards.
            with kept_random_numbers(self._trainer.strategy.root_device):
                own = range(*SampleSchedule.part(0, len(self._all), self._job.rank, self._job.world_size))
                self._compute(own)
                with may_lose_peer():
                    self._share(own)
                # The batches of a rank that was lost.
                self._compute(self._all)
        return self._known[index]

    def _compute(self, indices: Iterable[int]) -> None:
        """Computes those of the batches that are not known."""
        missing = set(indices).difference(self._known)
        for number, (loader, of_loader) in enumerate(self._parts):
            wanted = [index for index in of_loader if index in missing]
            if not wanted:
                continue
            samples = list(loader.batch_sampler)
            places = [index - of_loader.start for index in wanted]
            with contextlib.closing(batches_of(loader, [samples[place] for place in places])) as batches:
                for index, place, batch in zip(wanted, places, batches):
                    self._known[index] = logged_by(self._trainer, batch, place, number)

    def _share(self, own: range) -> None:
        """Exchanges what the ranks have logged."""
        job = self._job
        # The other ranks do not log such a value. The batches of one rank alone may have it.
        is_of_one = any(one.options["rank_zero_only"] for index in own for one in self._known[index])
        if job.sum([float(is_of_one)])[0] > 0:
            self._warn("self.log(..., rank_zero_only=True) lacks the batches of other workers; leave it out")
            return
        row = row_of({index: self._known[index] for index in own})
        of_all = rows.shared_rows([row if rank == job.rank else None for rank in range(job.world_size)], job.sum)
        if of_all is None:
            self._warn(f"the logged values have more than {rows.MOST_BYTES / 2**20:.0f} MiB; log fewer values, or leave the option out")
            return
        for found in of_all:
            assert found is not None
            self._known = batches_of_row(found, self._trainer.strategy.root_device) | self._known
        self.is_shared = True
