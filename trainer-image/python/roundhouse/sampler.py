"""Which samples a rank uses in a step: a function of the seed, the same at every world size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ._native import Course
from .errors import ConfigError


class Sampler:
    """The order of the samples, cut into global batches: a function of seed and epoch, the same at every world size.

    ``num_samples``: samples of the data set. Each comes once per epoch, unless ``drop_last``.
    ``global_batch_size``: samples of a step over all ranks, ``num_samples`` at most. Each rank has an equal share of them, up
    to one sample. The last step of an epoch has what is left.
    ``epochs`` or ``steps``: how long the training is, in passes over the data set or in committed steps. An epoch has
    ``ceil(num_samples / global_batch_size)`` steps. Exactly one of the two is given.
    ``seed``: from 0 to 2**64 - 1.
    ``reduction``: what the loss of a rank is, and with it the gradient. ``"mean"``: the mean over the samples of the rank; the
    gradient of a step is that of the mean over the global batch, whatever the shares. ``"sum"``: the sum over the samples; the
    gradient of a step is that of the sum over the global batch.
    ``in_order``: the order of the data set in every epoch, as a stream needs it.
    ``drop_last``: an epoch ends with its last whole batch. The samples that are left out are others in each epoch, unless
    ``in_order``. Without it the last batch of an epoch may be so small that ranks have one sample or none.

    Raises :class:`~roundhouse.errors.ConfigError` for numbers that are out of range or contradict each other.

    The order is that of Roundhouse's trainer in Rust: see ``Course`` of the native part.
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
        # Of an epoch.
        self.num_used = num_samples - num_samples % self.global_batch_size if drop_last else num_samples
        self.course = Course(self.num_used, global_batch_size, steps=steps, epochs=epochs, seed=seed)
        # The order is that of the whole data set, of which an epoch may use the beginning.
        self._order = Course(num_samples, global_batch_size, steps=1, seed=seed) if drop_last else self.course
        # The step that was planned last: the loop and the loader ask for the same one, if nothing is read ahead.
        self._planned: tuple[Any, Step | None] = (None, None)

    def plan(self, steps: int, samples: int, place: tuple[int, int, int]) -> Step | None:
        """The step after ``steps`` committed steps that have used ``samples``, as a rank does it; None at the end.

        ``place``: generation, rank and world size.
        """
        key = (steps, samples, place)
        if self._planned[0] != key:
            self._planned = (key, self._plan(*key))
        return self._planned[1]

    def _plan(self, steps: int, samples: int, place: tuple[int, int, int]) -> Step | None:
        batch = self.course.batch(steps, samples)
        if batch is None:
            return None
        epoch, start, end, ends_epoch = batch
        low, high = self.course.part(start, end, *place[1:])
        indices = tuple(range(low, high) if self.in_order else self._order.samples(epoch, low, high))
        return Step(steps + 1, epoch, indices, end - start, ends_epoch, *place)

    @property
    def total_steps(self) -> int:
        """Steps of the whole training."""
        return self.course.total_steps


@dataclass(frozen=True)
class Step:
    """One step as this rank does it.

    ``number`` counts from 1, ``epoch`` from 0. ``indices``: the samples of this rank; none if there are fewer than ranks.
    ``global_size``: samples of the step over all ranks.
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
        """Samples of this rank."""
        return len(self.indices)
