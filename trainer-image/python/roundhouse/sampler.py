"""Assigns samples to steps and ranks: a function of the seed, the same for every world size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ._native import SampleSchedule
from .errors import ConfigError
from .slices import owned

# As in the built-in trainer.
_MOST_SLICES = 4096


class Sampler:
    """The order of the samples, cut into global batches: a function of seed and epoch, the same for
    every world size.

    ``num_samples``: number of samples of the data set. Each is used once per epoch, unless
    ``drop_last``. ``global_batch_size``: number of samples of a step over all ranks, at most
    ``num_samples``. The ranks have equal shares, up to one sample. The last step of an epoch has
    the remaining samples. ``epochs`` or ``steps``: length of the training in passes over the data
    set or in committed steps. An epoch has ``ceil(num_samples / global_batch_size)`` steps. Exactly
    one of the two must be given. ``seed``: from 0 to 2**64 - 1. ``reduction``: the kind of a rank's
    loss, and so of its gradient. ``"mean"``: the mean over the samples of the rank; the gradient of
    a step is that of the mean over the global batch, whatever the shares. ``"sum"``: the sum over
    the samples; the gradient of a step is that of the sum over the global batch. ``in_order``: use
    the order of the data set in every epoch, which a stream needs. ``drop_last``: an epoch ends
    with its last whole batch. Each epoch leaves out other samples, unless ``in_order``. Without it
    the last batch of an epoch may be so small that ranks have one sample or none. ``slices``: cut
    each global batch into this number of slices, up to one sample of the same size, and sum their
    gradients in an order that does not depend on the world size. Each slice is a pass of its own:
    the loop yields it and ``job.commit`` ends it. A step with fewer samples has one slice for each
    of them.

    Raises :class:`~roundhouse.errors.ConfigError` for numbers that are out of range or contradict
    each other.

    The order is the same as in Roundhouse's built-in trainer: see ``SampleSchedule`` of the native
    part.
    """

    def __init__(
        self,
        num_samples: int,
        global_batch_size: int,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        reduction: str = "mean",
        in_order: bool = False,
        drop_last: bool = False,
        slices: int | None = None,
    ):
        for name, number in (("num_samples", num_samples), ("global_batch_size", global_batch_size)):
            if number < 1:
                raise ConfigError(f"job.sampler: {name} is {number}; it has to be at least 1")
        for name, length in (("epochs", epochs), ("steps", steps)):
            if length is not None and length < 1:
                raise ConfigError(f"job.sampler: {name} is {length}; it has to be at least 1")
        if not 0 <= seed < 2**64:
            raise ConfigError(f"job.sampler: seed is {seed}; it has to be from 0 to 2**64 - 1")
        if (epochs is None) == (steps is None):
            raise ConfigError("job.sampler needs either epochs=N or steps=N: how long the training is")
        if reduction not in ("mean", "sum"):
            raise ConfigError(f'job.sampler: reduction is {reduction!r}; give "mean" or "sum", as the loss function has it')
        if slices is not None and not 1 <= slices <= _MOST_SLICES:
            raise ConfigError(f"job.sampler: slices is {slices}; it has to be from 1 to {_MOST_SLICES}")
        self.num_samples = num_samples
        self.global_batch_size = min(global_batch_size, num_samples)
        self.seed = seed
        self.reduction = reduction
        self.in_order = in_order
        self.drop_last = drop_last
        self.slices = slices
        # Number of processes of a replica among which each slice is divided.
        self.num_parts = 1
        # Number of samples that an epoch uses.
        self.num_used = num_samples - num_samples % self.global_batch_size if drop_last else num_samples
        self.schedule = SampleSchedule(self.num_used, global_batch_size, steps=steps, epochs=epochs, seed=seed)
        # The order of the whole data set; an epoch may use only its first part.
        self._order = SampleSchedule(num_samples, global_batch_size, steps=1, seed=seed) if drop_last else self.schedule
        # The last planned step. Without reading ahead, loop and loader need the same step.
        self._planned: tuple[Any, Step | None] = (None, None)

    def plan(self, steps: int, samples: int, place: tuple[int, int, int]) -> Step | None:
        """The step of a rank after ``steps`` committed steps that have used ``samples``; None at
        the end.

        ``place``: generation, rank and world size.
        """
        key = (steps, samples, place)
        if self._planned[0] != key:
            self._planned = (key, self._plan(*key))
        return self._planned[1]

    def _plan(self, steps: int, samples: int, place: tuple[int, int, int]) -> Step | None:
        batch = self.schedule.batch(steps, samples)
        if batch is None:
            return None
        epoch, start, end, ends_epoch = batch
        indices: tuple[int, ...] = ()
        for _, first, after in self._shares(end - start, *place[1:]):
            low, high = start + first, start + after
            indices += tuple(range(low, high) if self.in_order else self._order.samples(epoch, low, high))
        return Step(steps + 1, epoch, indices, end - start, ends_epoch, *place)

    def _shares(self, size: int, rank: int, world_size: int) -> list[tuple[int | None, int, int]]:
        """The places of a rank's samples among those of a step: each slice of this rank, its first
        place, and the one after the last."""
        if self.slices is None:
            return [(None, *self.schedule.part(0, size, rank, world_size))]
        shares: list[tuple[int | None, int, int]] = []
        part = rank % self.num_parts
        for index in range(*self.owned(size, rank, world_size)):
            first, end = self.slice_of(size, index)
            shares.append((index, *self.schedule.part(first, end, part, self.num_parts)))
        return shares

    def num_slices(self, size: int) -> int:
        """Number of slices of a step with this number of samples; 1 without slices."""
        return min(self.slices or 1, size)

    def owned(self, size: int, rank: int, world_size: int) -> tuple[int, int]:
        """The first slice of a rank, and the one after its last. The processes of a replica have
        the same slices."""
        return owned(self.num_slices(size), rank // self.num_parts, world_size // self.num_parts)

    def slice_of(self, size: int, index: int) -> tuple[int, int]:
        """The places of a slice among those of a step."""
        return self.schedule.part(0, size, index, self.num_slices(size))

    def share_of_slice(self, step: Step) -> float:
        """The share of a slice in the samples of its step."""
        if step.slice is None:
            return 0.0
        first, end = self.slice_of(step.global_size, step.slice)
        return (end - first) / step.global_size

    def passes(self, step: Step) -> Sequence[Step]:
        """The passes of a rank in a step: its slices, or the whole step without slices."""
        shares = self._shares(step.global_size, step.rank, step.world_size)
        if self.slices is None or not shares:
            return [step]
        parts, at = [], 0
        for index, first, end in shares:
            indices = step.indices[at : at + end - first]
            at += len(indices)
            parts.append(replace(step, indices=indices, slice=index, ends_step=index == shares[-1][0]))
        return parts

    @property
    def total_steps(self) -> int:
        """Number of steps of the whole training."""
        return self.schedule.total_steps


def steps_per_epoch(num_samples: int, global_batch_size: int, *, drop_last: bool = False) -> int:
    """Number of steps of an epoch, for a scheduler that is made before the sampler.

    Raises :class:`~roundhouse.errors.ConfigError` as :class:`Sampler` does.
    """
    return Sampler(num_samples, global_batch_size, epochs=1, drop_last=drop_last).total_steps


@dataclass(frozen=True)
class Step:
    """One step, with the samples of this rank.

    ``number`` counts from 1, ``epoch`` from 0. ``indices``: the samples of this rank; empty if
    there are fewer samples than ranks. ``global_size``: number of samples of the step over all
    ranks. With ``job.sampler(..., slices=...)`` the loop yields one for each slice of this rank:
    ``indices`` are those of the slice, ``slice`` is its number from 0, and ``ends_step`` is True
    for the last one. A rank without slices has the ``slice`` None.
    """

    number: int
    epoch: int
    indices: tuple[int, ...]
    global_size: int
    ends_epoch: bool
    generation: int
    rank: int
    world_size: int
    slice: int | None = None
    ends_step: bool = True

    @property
    def size(self) -> int:
        """Number of samples of this rank, or of the slice."""
        return len(self.indices)
