"""Waits of the ranks for each other, while one of them evaluates or saves."""

from __future__ import annotations

import contextlib

from ..integration.waiting import may_lose_peer
from ..job import Job


class Pause:
    """A time between two steps in which each rank may take up to ``seconds``.

    It begins at the first of several places where all ranks come by, and ends before the next step.
    """

    def __init__(self, job: Job, seconds: float):
        self._job, self._seconds = job, seconds
        self._open = contextlib.ExitStack()
        self._is_open = False

    def begin(self) -> None:
        """Begins the pause, unless it has begun."""
        if not self._is_open:
            self._is_open = True
            self._open.enter_context(may_lose_peer())
            self._open.enter_context(self._job.patience(self._seconds))

    def end(self) -> bool:
        """Waits for the other ranks if the pause has begun. Returns whether it had."""
        was_open, self._is_open = self._is_open, False
        self._open.close()
        return was_open
