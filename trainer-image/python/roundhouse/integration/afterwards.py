"""What a script does after its training: rank 0 writes files, and another rank takes its place if
it is lost.

The ranks stay members of the job until their scripts end, but they do not wait for each other: each
may evaluate for hours. A connection of each rank to rank 0 ends with the process of rank 0.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket
import time
from collections.abc import Callable
from typing import TypeVar

from ..errors import PeerLost
from ..groups import Group
from ..job import Job
from ..replica import current
from .membership import Membership
from .steps import complete

Result = TypeVar("Result")

# A week, in seconds: a script may work for long after its training.
_PATIENCE = 604_800.0
# Seconds that rank 0 waits for the connections of the others.
_TIMEOUT = 60.0
# Seconds between two checks for Ctrl-C.
_LOOK_INTERVAL = 0.5
_TOKEN_BYTES = 16
# What rank 0 sends: it has written a file, or its script has ended.
_WRITTEN, _ENDED = b"w", b"e"


def stays_member() -> bool:
    """Whether a process remains a member of the job until its script ends. A process alone and the
    processes of a replica leave with the training."""
    return bool(os.environ.get("ROUNDHOUSE_MEMBERSHIP_FILE")) and current() is None


def write(afterwards: Afterwards | None, function: Callable[[], None]) -> None:
    """Calls ``function()``, which writes on rank 0; after the training as :meth:`Afterwards.write`
    does."""
    if afterwards is None:
        function()
    else:
        afterwards.write(function)


class Afterwards:
    """The time from the end of the training to the end of the script. All ranks must make one.

    ``total``: number of steps of the whole training.
    """

    def __init__(self, job: Job, total: int):
        self._job, self._total = job, total
        # Number of files that the script has asked for, whichever rank has written them.
        self._num_asked = self._num_written = 0
        self._is_writing = False
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

    def write(self, function: Callable[[], Result]) -> Result:
        """Calls ``function()``, which writes on rank 0. Returns when rank 0 has written. If rank 0
        is lost, the next rank 0 calls it again."""
        if self._is_writing:
            return function()  # A part of what another call writes.
        self._num_asked += 1
        while True:
            self._is_writing = True
            try:
                result = function()
            finally:
                self._is_writing = False
            if self._job.rank == 0:
                self._num_written = self._num_asked
            if self._line.has_written(self._num_asked):
                return result
            self._take_over()

    def _end(self) -> None:
        """Raises PeerLost if rank 0 was lost before the end of its script, and may have left work
        undone. All ranks start again then."""
        if not self._line.is_lost():
            self._line.end()
        elif self._num_asked == 0 or self._job._process.checkpoint_dir is not None:
            raise PeerLost("rank 0 was lost after the training, before its script had ended: the ranks start again and repeat that part")

    def _take_over(self) -> None:
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
            line = _opened(generations.group, self._num_written)
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


class Line:
    """The connections of a generation's ranks with its rank 0. ``is_first``: whether this rank is
    that one."""

    def __init__(self, is_first: bool, connections: list[socket.socket]):
        self._is_first, self._connections = is_first, connections
        self._num_written = 0
        self._has_ended = self._is_lost = False

    def has_written(self, number: int) -> bool:
        """Reports on rank 0 that it has written this number of files. Elsewhere it waits for the
        report, and returns False if rank 0 is lost before."""
        if self._is_first:
            self._send(_WRITTEN * (number - self._num_written))
            self._num_written = number
            return True
        while self._num_written < number and not (self._has_ended or self._is_lost):
            self._receive(_LOOK_INTERVAL)
        return self._num_written >= number or self._has_ended

    def is_lost(self) -> bool:
        """Whether rank 0 was lost before its script had ended."""
        while not (self._is_first or self._has_ended or self._is_lost) and self._receive(0.0):
            pass
        return self._is_lost

    def end(self) -> None:
        """Reports on rank 0 that its script has ended, and closes the connections."""
        self._send(_ENDED if self._is_first else b"")
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        for one in self._connections:
            one.close()

    def _send(self, words: bytes) -> None:
        for one in self._connections if words else ():
            # The script of the other rank may have ended.
            with contextlib.suppress(OSError):
                one.sendall(words)

    def _receive(self, seconds: float) -> bool:
        """Reads what rank 0 has sent. Returns False if there was nothing in this time."""
        (own,) = self._connections
        own.settimeout(seconds)
        try:
            words = own.recv(4096)
        except (BlockingIOError, TimeoutError):
            return False
        except OSError:
            words = b""
        self._num_written += words.count(_WRITTEN)
        self._has_ended |= _ENDED in words
        self._is_lost = not words
        return True


def _opened(group: Group | None, num_written: int) -> Line | None:
    """The connections of a new generation; None if rank 0 does not answer. ``num_written``: the
    number of files that this rank has written, if it is rank 0."""
    if group is None:
        return Line(True, [])
    try:
        if group.rank > 0:
            return Line(False, [_dial(group)])
        line = Line(True, _accepted(group))
    except (OSError, RuntimeError):
        return None  # The store is gone with rank 0.
    line.has_written(num_written)
    return line


def _accepted(group: Group) -> list[socket.socket]:
    address, token = os.environ["ROUNDHOUSE_POD_IP"], secrets.token_bytes(_TOKEN_BYTES)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    connections: list[socket.socket] = []
    with socket.create_server((address, 0), family=family, backlog=1024) as listener, selectors.DefaultSelector() as ready:
        group._store.store.set("afterwards", f"{listener.getsockname()[1]} {token.hex()} {address}")
        ready.register(listener, selectors.EVENT_READ)
        ends_at = time.monotonic() + _TIMEOUT
        # A rank that does not come is lost, which the next collective shows.
        while len(connections) < group.size - 1 and time.monotonic() < ends_at:
            if not ready.select(_LOOK_INTERVAL):
                continue
            one, _ = listener.accept()
            one.settimeout(_TIMEOUT)
            if _read(one, len(token)) == token:
                connections.append(one)
            else:
                one.close()
    return connections


def _dial(group: Group) -> socket.socket:
    port, token, address = group._store.store.get("afterwards").decode().split(" ")
    own = socket.create_connection((address, int(port)), timeout=_TIMEOUT)
    # A node that is lost closes no connection.
    own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 4)):
        own.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    own.sendall(bytes.fromhex(token))
    return own


def _read(own: socket.socket, length: int) -> bytes:
    words = b""
    with contextlib.suppress(OSError):
        while len(words) < length and (more := own.recv(length - len(words))):
            words += more
    return words
