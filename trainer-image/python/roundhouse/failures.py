"""Distinguishes failures by a lost peer, which the next generation no longer has, from failures
that repeat in each generation."""

from __future__ import annotations

from .errors import is_own
from .gradients import Gradients
from .migration import recognized

# Number of consecutive generations in which a step must fail with the same message before it no
# longer counts as a lost peer. Several are needed, because peers that are lost one after the other
# within a long step can cause the same message, such as a timeout.
_SAME = 5


class Failures:
    """The last failures of one process."""

    def __init__(self) -> None:
        # Failed collectives of the script: message by the place at which the failure would repeat.
        self._words: tuple[tuple[int, bool] | None, str] | None = None
        # The last dropped step: its number, the reason, and the number of consecutive drops for it.
        self._drop: tuple[int, str | None] = (0, None)
        self._num_drops = 0
        self._raised: BaseException | None = None

    def formed(self) -> None:
        """Must be called when the callbacks of a generation have succeeded."""
        if self._words is not None and self._words[0] is None:
            self._words = None

    def is_of_script(self, error: BaseException, steps: int, is_open: bool | None) -> bool:
        """Whether an error of a collective of the script is not a lost peer, or occurred in the
        last generation, too.

        ``steps``: committed steps. ``is_open``: True in a step, False after its commit, None in a
        callback.
        """
        if is_own(error) or error is self._raised or recognized(error) is not None:
            return True
        if (None if is_open is None else (steps, is_open), str(error)) == self._words:
            return True
        # After a commit, the next generation is at the same place one step later.
        self._words = (None if is_open is None else (steps if is_open else steps + 1, is_open), str(error))
        return False

    def check_drop(self, step: int, gradients: Gradients) -> None:
        """Must be called when a step is dropped. Raises an error that a lost peer does not explain:
        a local error, or one that repeats."""
        if gradients.own_error is not None:
            raise self._no_peers(gradients.own_error)
        drop = (step, gradients.broken)
        self._num_drops = self._num_drops + 1 if drop == self._drop else 1
        self._drop = drop
        if gradients.broken is not None and self._num_drops >= _SAME:
            raise self._no_peers(RuntimeError(f"step {step} fails with the same error in each generation: {gradients.broken}"))

    def _no_peers(self, error: BaseException) -> BaseException:
        # Mark the error, so that `with batch:` does not treat it as a lost peer.
        self._raised = error
        return error
