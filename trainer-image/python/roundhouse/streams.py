"""Streams of samples as data sets for ``job.steps``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .errors import ConfigError, DataMismatch
from .seeding import mixed, seed_all


class Shard:
    """A stream that every rank reads from the start of an epoch; each rank keeps its own samples.

    :meth:`~roundhouse.job.Job.shard_of` returns it.
    """

    def __init__(self, stream: Iterable[Any] | Callable[[int], Iterable[Any]], num_samples: int):
        if not callable(stream) and _is_read_once(stream):
            raise ConfigError(
                f"job.shard_of got a {type(stream).__name__}, which can be read only once: a stream is read from its beginning "
                "in each epoch and after each change of the workers; give a function of the epoch that returns a new one"
            )
        self._stream = stream
        self._num_samples = num_samples
        self._samples: Iterator[Any] | None = None
        self._epoch = 0
        # The position in the stream: the index of the last sample that was read, and that sample.
        self._last: tuple[int, Any] = (-1, None)

    def __len__(self) -> int:
        return self._num_samples

    def at(self, epoch: int, index: int, seed: int | None) -> Any:
        """Returns a sample. Reads all samples before it, too, and starts the stream again if it is
        already past the sample.

        With a ``seed`` the random numbers of a sample are a function of seed, epoch and index, and
        do not depend on the samples that the rank has read before.
        """
        if self._samples is None or epoch != self._epoch or index < self._last[0]:
            opened = self._stream(epoch) if callable(self._stream) else self._stream
            self._samples, self._epoch, self._last = iter(opened), epoch, (-1, None)
        while self._last[0] < index:
            following = self._last[0] + 1
            if seed is not None:
                seed_all(mixed(seed, epoch, following))
            try:
                self._last = (following, next(self._samples))
            except StopIteration:
                raise DataMismatch(
                    f"the stream has ended after {following} samples of epoch {epoch}, but job.shard_of has num_samples="
                    f"{self._num_samples}: give the number of samples that every epoch has"
                ) from None
        return self._last[1]


def _is_read_once(stream: Any) -> bool:
    try:
        return iter(stream) is stream
    except TypeError as error:
        raise ConfigError(
            f"job.shard_of got a {type(stream).__name__}, which is not iterable ({error}): give an iterable of samples, or a "
            "function of the epoch that returns one"
        ) from error


class Streamed:
    """Reads a :class:`Shard` by the keys of a loader: (epoch, index)."""

    def __init__(self, shard: Shard, seed: int | None):
        self._shard = shard
        self._seed = seed

    def __getitem__(self, key: tuple[int, int]) -> Any:
        return self._shard.at(*key, self._seed)
