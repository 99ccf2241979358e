"""Assigns samples to steps and ranks: a function of the seed, the same for every world size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ._native import SampleSchedule
from .errors import ConfigError


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
    the last batch of an epoch may be so small that ranks have one sample or none.

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
        self.num_samples = num_samples
        self.global_batch_size = min(global_batch_size, num_samples)
        self.seed = seed
        self.reduction = reduction
        self.in_order = in_order
        self.drop_last = drop_last
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
        low, high = self.schedule.part(start, end, *place[1:])
        indices = tuple(range(low, high) if self.in_order else self._order.samples(epoch, low, high))
        return Step(steps + 1, epoch, indices, end - start, ends_epoch, *place)

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
    ranks.
    """

    number: int
    epoch: int
    indices: tuple[int, ...]
    global_size: int
    ends_epoch: bool
    generation: int
    rank: int
    world_size: int

    @property
    def size(self) -> int:
        """Number of samples of this rank."""
        return len(self.indices)
