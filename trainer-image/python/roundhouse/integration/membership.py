"""The membership of a script that does not say where its training ends."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from typing import Any

from ..ending import Exits, leave_with
from ..job import Job


class Membership:
    """The membership of a script without ``with`` around its loop. It ends with :meth:`close`, or
    with the process. ``complete`` completes the training with all ranks."""

    def __init__(self, job: Job, complete: Callable[[], None]):
        self._job, self._complete, self._pid = job, complete, os.getpid()
        self.is_over = False
        self._hook, sys.excepthook = sys.excepthook, self._failed
        self._exits = Exits()
        atexit.register(self._at_exit)

    def close(self) -> None:
        """Completes the training, and ends the membership."""
        if not self.is_over:
            self._complete()
            self._over()
            self._job.__exit__(None, None, None)

    def fail(self, error: BaseException) -> BaseException:
        """Ends the membership with an error. Returns the error that explains it."""
        if not self.is_over:
            self._over()
            try:
                self._job.__exit__(type(error), error, error.__traceback__)
            except Exception as other:
                return other
        return error

    def _over(self) -> None:
        self.is_over = True
        sys.excepthook = self._hook
        self._exits.close()
        atexit.unregister(self._at_exit)

    def _failed(self, _: type[BaseException], error: BaseException, __: Any) -> None:
        hook = self._hook
        if os.getpid() == self._pid:
            error = self.fail(error)
        hook(type(error), error, error.__traceback__)

    def _at_exit(self) -> None:
        if os.getpid() != self._pid:
            return  # A child process that the script has forked is no member.
        if (error := self._exits.error()) is not None:
            cause = self.fail(error)
            if cause is not error:
                sys.__excepthook__(type(cause), cause, cause.__traceback__)
            if not isinstance(cause, SystemExit):
                # A library has replaced the hook, and Python would end with exit code 1.
                leave_with(cause)
            return
        try:
            self.close()
        except Exception as trouble:
            self._failed(type(trouble), trouble, None)
