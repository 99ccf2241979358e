"""Work between steps that takes the ranks differently long."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..errors import PeerLost
from ..job import Job


@contextlib.contextmanager
def may_lose_peer() -> Iterator[None]:
    """If a rank is lost in this context, the others leave it and continue alone until the next
    step."""
    try:
        yield
    except PeerLost as lost:
        if lost.newer is not None:
            raise  # A newer generation has superseded this process.


@contextlib.contextmanager
def waits(job: Job | None, seconds: float) -> Iterator[None]:
    """The ranks wait for each other at the end of this context, each of which may take ``seconds``.
    Without a job nothing waits."""
    if job is None:
        yield
        return
    with may_lose_peer(), job.patience(seconds):
        yield
