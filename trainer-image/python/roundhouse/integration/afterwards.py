"""What a script does after its training: rank 0 writes files, and another rank takes its place if
it is lost.

The ranks stay members of the job until their scripts end, but they do not wait for each other: each
may evaluate for hours. A connection of each rank to rank 0 ends with the process of rank 0.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from ..errors import PeerLost
from ..job import Job
from ..replica import current
from .lines import Calls, Line, open_line
from .membership import Membership
from .steps import complete

Result = TypeVar("Result")

# A week, in seconds: a script may work for long after its training.
_PATIENCE = 604_800.0
_LOST = "rank 0 was lost after the training, before its script had ended: the ranks start again and repeat that part"


def stays_member() -> bool:
    """Whether a process remains a member of the job until its script ends. A process alone and the
    processes of a replica leave with the training."""
    return bool(os.environ.get("ROUNDHOUSE_MEMBERSHIP_FILE")) and current() is None


def write(afterwards: Afterwards | None, target: object, function: Callable[[], None]) -> None:
    """Calls ``function()``, which writes on rank 0; after the training as :meth:`Afterwards.write`
    does."""
    if afterwards is None:
        function()
    else:
        afterwards.write(str(target), function)


class Afterwards:
    """The time from the end of the training to the end of the script. All ranks must make one.

    ``total``: number of steps of the whole training.
    """

    def __init__(self, job: Job, total: int):
        self._job, self._total = job, total
        # The calls of the script that have written, on whichever rank.
        self._written = Calls()
        self._is_writing = False
        # Why a call was lost with rank 0, until the ranks have connected with another one.
        self._undone: str | None = None
        # Identities and versions of the trained tensors at the end of the training, once it has
        # returned.
        self._trained: list[tuple[int, int, int]] | None = None
        self._line = self._meet()

    def stay(self) -> None:
        """Must be called when the training returns to the script. The process remains a member of
        the job until the script ends."""
        self.note()
        Membership(self._job, self._end)

    def note(self) -> None:
        """Must be called after a change of the model by the library."""
        self._trained = self._versions()

    def write(self, target: str, function: Callable[[], Result]) -> Result:
        """Calls ``function()``, which writes on rank 0. Returns when rank 0 has written. If rank 0
        is lost, the next rank 0 calls it again. ``target``: what it writes.

        A call that raises an error does not count, so a script may repeat it.
        """
        if self._is_writing:
            return function()  # A part of what another call writes.
        call = self._written.following(target)
        while True:
            self._is_writing = True
            try:
                result = function()
            finally:
                self._is_writing = False
            if self._line.report_or_wait(call):
                self._written.add(call)
                return result
            if self._line.has_ended:
                self._undone = (
                    f"the script of rank 0 has ended without writing {target}, so the ranks start again: make the call on all ranks, or "
                    "on rank 0 alone"
                )
                raise PeerLost(self._undone)  # The script may catch it.
            self._take_over()

    def _end(self) -> None:
        """Raises PeerLost if rank 0 was lost before the end of its script, and may have left work
        undone. All ranks start again then."""
        if not (self._undone or self._line.is_lost()):
            self._line.end()
        elif self._undone or not self._written.keys or self._job._process.checkpoint_dir is not None:
            raise PeerLost(self._undone or _LOST)

    def _take_over(self) -> None:
        # Until the end of this method: the script may catch what it raises.
        self._undone = _LOST
        self._line.close()
        if self._trained not in (None, self._versions()):
            # A new rank would get the changed model, and change it again.
            raise PeerLost(
                "rank 0 was lost after the training, and the script has changed the model since: the ranks start again and repeat that "
                "part"
            )
        self._lose("rank 0 was lost after the training")
        self._form()
        self._line = self._meet()
        if self._trained is not None:
            self.note()
        self._undone = None

    def _versions(self) -> list[tuple[int, int, int]]:
        tensors = [one for module in self._job._modules for one in (*module.parameters(), *module.buffers())]
        return [(id(one), one.data_ptr(), 0 if one.is_inference() else one._version) for one in tensors]

    def _lose(self, why: str) -> None:
        self._job._process.lose(why)
        self._job._generations.leave()

    def _form(self) -> None:
        loops = self._job._loops
        if self._job.steps_done < self._total:
            # The ranks have stopped early. A new rank stops, too, and meets them there.
            loops.is_finished = False
            complete(self._job, lambda: True)
        else:
            loops.finish_again()

    def _meet(self) -> Line:
        """Connects the ranks with rank 0, in further generations if one is lost meanwhile."""
        generations, process = self._job._generations, self._job._process
        while True:
            line = open_line(generations.group, self._written)
            if line is None:
                self._lose("rank 0 does not answer after the training")
            elif process.sum([0.0]) is not None:
                generations.rest()
                process.begin_wait(_PATIENCE)
                return line
            else:
                line.close()
                generations.leave()
            self._form()
