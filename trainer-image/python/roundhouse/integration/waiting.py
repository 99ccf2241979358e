"""Work between steps that takes the ranks differently long."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..errors import PeerLost
from ..job import Job
from ..replica import current

# Ranks begin an evaluation at about the same time, right after a commit. If one of them does not,
# because it is lost or because rank 0 evaluates alone, the others wait for this long.
_SECONDS_TO_BEGIN = 3.0


@contextlib.contextmanager
def may_lose_peer() -> Iterator[None]:
    """If a rank is lost in this context, the others leave it and continue alone until the next
    step."""
    try:
        yield
    except PeerLost as lost:
        if lost.newer is not None:
            raise  # A newer generation has superseded this process.
        if (replica := current()) is not None:
            replica.check()  # A process of this replica is lost, and this one has to end.


@contextlib.contextmanager
def waits(job: Job | None, seconds: float) -> Iterator[None]:
    """The ranks wait for each other at the end of this context, each of which may take ``seconds``.
    Without a job nothing waits."""
    if job is None:
        yield
        return
    with may_lose_peer(), job.patience(seconds):
        yield


def all_begin(job: Job, place: str, seconds: float = _SECONDS_TO_BEGIN) -> bool:
    """Whether all ranks come to the named place within some seconds. A script may call there on
    rank 0 alone, and then the ranks must not wait for each other: Gloo would end the process of a
    rank whose peers are in another collective."""
    group = job._generations.group
    return group is None or group.gathers(place, seconds)


class Meeting:
    """Work that the ranks share. They call the same collectives, although a rank may stay away, or
    fail in a part of the work and continue its script.

    ``is_together``: whether all ranks share the work so far. They exchange results only then.
    ``seconds``: how long a part may take each rank.
    """

    def __init__(self, job: Job, seconds: float, *, is_together: bool):
        self._job, self._seconds = job, seconds
        self.is_together = is_together

    @contextlib.contextmanager
    def waits(self) -> Iterator[None]:
        """The ranks that are together wait for each other at the end of this context. They part if
        one of them has failed in it or was lost. A rank that has lost its generation is evaluating
        in it."""
        if not self.is_together:
            has_lost = self._job._generations.group is None
            with waits(self._job, self._seconds) if has_lost else contextlib.nullcontext():
                yield
            return
        error: Exception | None = None
        self.is_together = False
        with may_lose_peer():
            with self._job.patience(self._seconds):
                try:
                    yield
                except Exception as raised:
                    if current() is not None:
                        raise  # The other processes of the replica wait within their passes.
                    error = raised
            self.is_together = self._job.sum([float(error is not None)]) == [0.0]
        if error is not None:
            raise error

    @contextlib.contextmanager
    def exchanges(self) -> Iterator[None]:
        """The ranks, which must be together, exchange results in this context. They part if one of
        them is lost."""
        self.is_together = False
        with may_lose_peer():
            yield
            self.is_together = True
