"""Validations that the ranks compute together.

Each rank runs ``validation_step`` for its part of the batches and keeps what it logs, without
reducing it. The ranks exchange these values, and each rank then logs those of all batches in their
order. So Lightning itself reduces them, and the metrics are those of one process bit for bit.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .._native import SampleSchedule
from ..integration.loaders import batches_of
from ..integration.waiting import may_lose_peer
from ..job import Job
from ..replica import current
from ..seeding import States
from .kept import Kept, is_same
from .logged import Logged, batches_of_text, text_of
from .logs import gathered_bytes
from .validation_internals import Loaders, is_divisible, kept_of, log_again, logged_by


def _finish(work: Iterator[None]) -> None:
    for _ in work:
        pass


class Slot:
    """Stands for a batch whose logged values are known."""

    def __init__(self, logged: list[Logged]):
        self._logged = logged

    def log(self, module: Any) -> None:
        """Logs the values of the batch."""
        log_again(module, self._logged)


class Slots:
    """What the loop reads in place of a loader: the slots of its batches."""

    def __init__(self, loader: Any, indices: range, logged: Callable[[int], list[Logged]]):
        self._loader, self._indices, self._logged_of = loader, indices, logged

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[Slot]:
        # As a DataLoader does, so that what follows the validation draws the same numbers.
        torch.empty((), dtype=torch.int64).random_(generator=self._loader.generator)
        return (Slot(self._logged_of(index)) for index in self._indices)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class Validations:
    """The validations of a training. ``divides()``: whether this rank may divide the next one."""

    def __init__(self, job: Job, trainer: Any, divides: Callable[[], bool]):
        self._job, self._trainer, self._divides = job, trainer, divides
        self._loaders = Loaders(trainer, self._stand_ins)
        self._current: _Division | None = None
        # Whether validation_step has done more than to log, the last time. None before the first
        # validation.
        self._had_side_effects: bool | None = None

    def _stand_ins(self, loaders: list[Any], limits: list[int]) -> list[Any] | None:
        self._current = None
        if not self._divides() or self._job.world_size == 1 or current() is not None or not is_divisible(self._trainer):
            return None
        self._current = _Division(self._job, self._trainer, loaders, limits, self._had_side_effects)
        return self._current.stand_ins()

    def end(self) -> bool:
        """Must be called at the end of a validation. Returns whether all ranks have its result."""
        self._loaders.restore()
        division, self._current = self._current, None
        if division is None:
            return False
        self._had_side_effects = division.has_side_effects
        return division.is_shared

    def close(self) -> None:
        """Must be called at the end of the training."""
        self._loaders.close()


class _Division:
    """One validation. ``limits``: the number of batches of each loader. The batches of all loaders
    are counted through. ``had_side_effects``: whether this rank expects that it cannot divide them;
    None if it has to find out."""

    def __init__(
        self, job: Job, trainer: Any, loaders: Sequence[Any], limits: Sequence[int], had_side_effects: bool | None
    ):
        self._job, self._trainer, self._loaders, self._limits = job, trainer, loaders, list(limits)
        self._starts = [0, *itertools.accumulate(limits)]
        self._all = range(self._starts[-1])
        self._own = range(*SampleSchedule.part(0, len(self._all), job.rank, job.world_size))
        self._known: dict[int, list[Logged]] = {}
        # Whether all ranks know the values of all batches.
        self.is_shared = False
        # Whether validation_step has done more than to log, on some rank.
        self.has_side_effects = False
        self._work = self._compute_all(had_side_effects)

    def stand_ins(self) -> list[Any]:
        """What the loop reads in place of the loaders."""
        return [
            Slots(loader, range(start, end), self._logged)
            for loader, start, end in zip(self._loaders, self._starts, self._starts[1:])
        ]

    def _logged(self, index: int) -> list[Logged]:
        """What a batch has logged. Computes batches until this is known."""
        while index not in self._known:
            next(self._work)
        if index == self._all[-1]:
            _finish(self._work)  # Other ranks may wait for the values of this one.
        return self._known[index]

    def _compute_all(self, had_side_effects: bool | None) -> Iterator[None]:
        """Computes this rank's part, and what no other rank has computed. Yields when more batches
        are known."""
        begun, kept = States(), kept_of(self._trainer)
        # A rank that begins with the first batch computes them all in their order, if it has to.
        is_in_order = had_side_effects or self._own.start == 0
        if not is_in_order and had_side_effects is None:
            _finish(self._compute(range(1)))
            is_in_order = self._finds_side_effects(kept)
        if is_in_order:
            yield from self._compute(self._own if self._own.start == 0 else self._all)
        else:
            # The loop must not use the first batch yet: it may be computed again.
            _finish(self._compute(self._own))
        self._finds_side_effects(kept)
        self._share()
        if self.has_side_effects and not is_in_order:
            # Like the whole validation of the other ranks.
            begun.restore()
            self._known.clear()
        yield
        # The batches of a lost rank, or all others after a side effect.
        yield from self._compute(self._all)

    def _compute(self, indices: range) -> Iterator[None]:
        """Computes those of the batches that are not known."""
        for number, loader in enumerate(self._loaders):
            start = self._starts[number]
            wanted = [index for index in range(start, self._starts[number + 1]) if index in indices]
            places = [index - start for index in wanted if index not in self._known]
            if not places:
                continue
            samples, generator = list(loader.batch_sampler), torch.Generator()
            generator.set_state(torch.default_generator.get_state())
            with contextlib.closing(batches_of(loader, [samples[place] for place in places], generator)) as loaded:
                for place in places:
                    before = States()
                    logged = logged_by(self._trainer, next(loaded), place, number, self._note_side_effect)
                    if not before.is_same(States()):
                        self._note_side_effect()
                    self._known[start + place] = logged
                    yield

    def _note_side_effect(self) -> None:
        self.has_side_effects = True

    def _finds_side_effects(self, kept: Kept) -> bool:
        """Whether ``validation_step`` has done more than to log. ``kept``: what the script kept
        before."""
        if not is_same(kept, kept_of(self._trainer)):
            self._note_side_effect()
        return self.has_side_effects

    def _share(self) -> None:
        """Exchanges what the ranks have logged."""
        with may_lose_peer():
            rows = [json.loads(zlib.decompress(row)) for row in gathered_bytes(self._job, zlib.compress(self._row()))]
            texts = [text for limits, text in rows if limits == self._limits and text is not None]
            self.has_side_effects |= len(texts) < len(rows)
            if not self.has_side_effects:
                for text in texts:
                    found = batches_of_text(text, self._trainer.strategy.root_device)
                    self._known.update({index: found[index] for index in found if index not in self._known})
                self.is_shared = True

    def _row(self) -> bytes:
        """What this rank sends. Ranks whose data sets have different lengths divide nothing."""
        text = None
        if not self.has_side_effects:
            with contextlib.suppress(TypeError):
                text = text_of({index: self._known[index] for index in self._own})
        return json.dumps([self._limits, text]).encode()
