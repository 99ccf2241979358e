"""Waits for collectives over Gloo that end when their group is aborted.

If a peer dies in the middle of a message, Gloo does not wake the thread that waits for the rest of
the message, and it has no abort. Such an abandoned thread keeps its work and its tensors until the
timeout of the collective.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")

# Seconds between two checks whether the group is aborted. The end of the collective itself is
# noticed at once.
_LOOK_INTERVAL = datetime.timedelta(milliseconds=50)
_WORDS = "Connection closed: the process group was aborted"


class Waits:
    """The waits of one group."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0
        # The callbacks of the abort by the number of the wait.
        self._open: dict[int, Callable[[], None]] = {}
        self._is_aborted = False

    def oldest(self) -> int:
        """Number of the collective that has waited longest; 0 if no collective waits."""
        with self._lock:
            return min(self._open, default=0)

    def abort(self) -> None:
        """Ends all waits; later waits end at once."""
        with self._lock:
            self._is_aborted = True
            ends = list(self._open.values())
            self._open.clear()
        for end in ends:
            end()

    def until_done(self, work: Any) -> None:
        """Waits for a collective. Raises RuntimeError if it has failed or the group is aborted."""
        number = self.begin(lambda: None)
        try:
            while not self._is_aborted:
                try:
                    work.wait(_LOOK_INTERVAL)
                    return
                except RuntimeError:
                    if work.is_completed():
                        # The collective may have ended in the moment in which the check timed out.
                        work.wait()
                        return
        finally:
            self.end(number)
        raise RuntimeError(_WORDS)

    def future(self, work: Any, result: Result, broke: Callable[[BaseException], None]) -> torch.futures.Future[Result]:
        """A future that gets ``result`` when a collective has ended or the group is aborted.
        ``broke`` receives the error before that, if there is one."""
        done: torch.futures.Future[Result] = torch.futures.Future()

        def aborted() -> None:
            broke(RuntimeError(_WORDS))
            done.set_result(result)

        number = self.begin(aborted)

        def ended(future: Any) -> None:
            if not self.end(number):
                return
            try:
                future.value()
            except RuntimeError as error:
                broke(error)
            done.set_result(result)

        work.get_future().add_done_callback(ended)
        return done

    def begin(self, aborted: Callable[[], None]) -> int:
        """Begins a wait, which an abort ends by calling ``aborted``. Returns its number; 0 if the
        group is aborted already."""
        with self._lock:
            self._last += 1
            if not self._is_aborted:
                self._open[self._last] = aborted
                return self._last
        aborted()
        return 0

    def end(self, number: int) -> bool:
        """Ends a wait. Returns whether no abort has ended it before."""
        with self._lock:
            return self._open.pop(number, None) is not None


class Bounded:
    """A started collective whose wait an abort can end."""

    def __init__(self, waits: Waits, work: Any):
        self._waits, self._work = waits, work

    def wait(self) -> None:
        """Waits for the collective: see :meth:`Waits.until_done`."""
        self._waits.until_done(self._work)


class Apart:
    """Started sends and receives over Gloo.

    If the wait for one of them ended early, it would close the connections of all, so a thread
    waits for all of them.
    """

    def __init__(self, waits: Waits, works: list[Any], tensors: tuple[torch.Tensor, ...]):
        self._waits, self._works, self._tensors = waits, works, tensors
        self._is_over = threading.Event()
        self._error: BaseException | None = RuntimeError(_WORDS)
        self._number = waits.begin(self._is_over.set)
        threading.Thread(target=self._run, name="exchange", daemon=True).start()

    def wait(self) -> None:
        """Returns when all have ended. Raises RuntimeError if one has failed or the group is
        aborted."""
        # Wait with a timeout: in the main thread Ctrl-C would not end a wait without one.
        while not self._is_over.wait(_LOOK_INTERVAL.total_seconds()):
            pass
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            for work in self._works:
                work.wait()
        except RuntimeError as raised:
            error = raised
        if self._waits.end(self._number):
            self._error = error
            self._is_over.set()
