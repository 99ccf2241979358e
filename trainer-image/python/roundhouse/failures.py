"""Whether what fails is a lost peer, whom the next generation is without, or comes again in each generation."""

from __future__ import annotations

from .errors import is_own
from .gradients import Gradients
from .migration import recognized

# Generations, one after the other, in which a step fails with the same words before that is no lost peer. Some may be: peers that
# are lost one after the other within a long step can leave the same words, such as those of a timeout.
_SAME = 5


class Failures:
    """The last failures of one process."""

    def __init__(self) -> None:
        # Of collectives of the script's own: words, by the place at which they would come again.
        self._words: tuple[tuple[int, bool] | None, str] | None = None
        # Of the last step that was dropped: its number, why, and how often in succession.
        self._drop: tuple[int, str | None] = (0, None)
        self._num_drops = 0
        self._raised: BaseException | None = None

    def formed(self) -> None:
        """The callbacks of a generation have succeeded."""
        if self._words is not None and self._words[0] is None:
            self._words = None

    def is_of_script(self, error: BaseException, steps: int, is_open: bool | None) -> bool:
        """Whether an error of a collective of the script's own is no lost peer's, or has come in the last generation as well.

        ``steps``: committed ones. ``is_open``: in a step, or, if False, after its commit. None: in a callback.
        """
        if is_own(error) or error is self._raised or recognized(error) is not None:
            return True
        if (None if is_open is None else (steps, is_open), str(error)) == self._words:
            return True
        # After a commit the same place is one step later in the next generation.
        self._words = (None if is_open is None else (steps if is_open else steps + 1, is_open), str(error))
        return False

    def check_drop(self, step: int, gradients: Gradients) -> None:
        """A step is dropped. Raises an error that no lost peer explains: this process's own, or one that comes again."""
        if gradients.own_error is not None:
            raise self._no_peers(gradients.own_error)
        drop = (step, gradients.broken)
        self._num_drops = self._num_drops + 1 if drop == self._drop else 1
        self._drop = drop
        if gradients.broken is not None and self._num_drops >= _SAME:
            raise self._no_peers(RuntimeError(f"step {step} fails with the same error in each generation: {gradients.broken}"))

    def _no_peers(self, error: BaseException) -> BaseException:
        # `with batch:` does not take it for a lost peer.
        self._raised = error
        return error
