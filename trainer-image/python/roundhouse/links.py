"""Connections between the processes of a replica, for the few numbers on which they agree several
times in each step.

The processes are on one host. Each sends one message to the first process, which adds the numbers
up and sends the sums to all. A sum over a process group passes several threads in each process,
which takes 20 times as long.
"""

from __future__ import annotations

import contextlib
import enum
import secrets
import select
import socket
import struct
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch.distributed as dist

# The subject and the number of values.
_HEAD = struct.Struct("<qq")
# The number of values of a process that does not agree.
_NONE = -1
# Seconds in which a process that has connected must name itself.
_GREETING = 20.0


class Subject(enum.IntEnum):
    """What the processes agree on."""

    SUM = 0
    HOLDS = 1
    VOTE = 2
    # A pass of the model begins.
    PASS = 3
    # Not all processes have come with the same subject.
    APART = 4
    # The script writes its result, and leaves the job.
    RESULT = 5
    END = 6


class Elsewhere(ConnectionError):
    """The processes of a replica are at different places of the script. ``subject``: that of this
    process."""

    def __init__(self, subject: Subject, other: str):
        super().__init__(f"processes of a replica are at different places: {subject.name} and {other}")
        self.subject = subject


class _Link:
    """A connection to another process."""

    def __init__(self, connection: socket.socket, seconds: float):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self.set_timeout(seconds)

    def set_timeout(self, seconds: float) -> None:
        self.connection.settimeout(seconds)

    def send(self, subject: Subject, numbers: Sequence[float] | None) -> None:
        length = _NONE if numbers is None else len(numbers)
        self.connection.sendall(_HEAD.pack(subject, length) + array("d", numbers or ()).tobytes())

    def receive(self, subject: Subject) -> list[float] | None:
        theirs, length = _HEAD.unpack(self.read(_HEAD.size))
        if theirs != subject:
            other = "another one" if theirs == Subject.APART else Subject(theirs).name
            raise Elsewhere(subject, other)
        return None if length == _NONE else array("d", self.read(8 * length)).tolist()

    def read(self, length: int) -> bytes:
        # A buffered reader has a lock. If another thread forks while this one reads, the child
        # process would wait for the lock forever when it closes the connection.
        data = bytearray()
        while len(data) < length:
            piece = self.connection.recv(length - len(data))
            if not piece:
                raise ConnectionError("the connection was closed by a process of the replica")
            data += piece
        return bytes(data)

    def close(self) -> None:
        self.connection.close()


class Links:
    """The connections of a process: of the first one to all others, and of others to the first
    one.

    ``store``: of the processes of the replica. Connecting may take ``start`` seconds, and a message
    ``patience`` seconds. Raises OSError if a process is lost.
    """

    def __init__(self, store: dist.Store, shard: int, size: int, address: str, *, start: float, patience: float):
        self._is_first = shard == 0
        if self._is_first:
            self._links = _accepted(store, size, address, start)
        else:
            port, token = store.get("links").decode().split()
            link = _Link(socket.create_connection((address, int(port)), start), start)
            link.connection.sendall(token.encode() + _HEAD.pack(0, shard))
            self._links = [link]
        for link in self._links:
            link.set_timeout(patience)

    def sum(self, subject: Subject, numbers: Sequence[float] | None) -> list[float] | None:
        """Sums numbers over the processes, element by element, in the order of the processes.
        Returns None in all of them if one passes None. All must call it at the same place, with
        equally many numbers.

        Raises OSError if a process is lost or does not do that. Then the connections are closed, so
        that all processes get an error, and later sums raise it at once."""
        try:
            return self._sum(subject, numbers)
        except BaseException:
            # A process may wait for this one, which waits for another one. After an interrupt, half
            # a message may be left.
            self.close()
            raise

    def _sum(self, subject: Subject, numbers: Sequence[float] | None) -> list[float] | None:
        if not self._is_first:
            self._links[0].send(subject, numbers)
            return self._links[0].receive(subject)
        total = None if numbers is None else list(numbers)
        for shard, link in enumerate(self._links, 1):
            try:
                others = link.receive(subject)
            except Elsewhere:
                self._part()
                raise
            if total is None or others is None:
                total = None
            elif len(others) != len(total):
                raise ConnectionError(f"process {shard} of the replica has {len(others)} numbers, and process 0 has {len(total)}")
            else:
                total = [one + other for one, other in zip(total, others)]
        for link in self._links:
            link.send(subject, total)
        return total

    def is_closed(self) -> bool:
        """Whether a connection is closed, for example because the other process has ended. Returns
        at once."""
        ends = select.poll()
        for link in self._links:
            if link.connection.fileno() < 0:
                return True  # This process has closed it.
            ends.register(link.connection, select.POLLRDHUP)
        return bool(ends.poll(0))

    def _part(self) -> None:
        """Lets all processes know why they get an error."""
        for link in self._links:
            with contextlib.suppress(OSError):
                link.send(Subject.APART, None)

    def close(self) -> None:
        """Closes the connections. The other processes notice it."""
        for link in self._links:
            link.close()


def _accepted(store: dist.Store, size: int, address: str, seconds: float) -> list[_Link]:
    """The connections from processes 1 to ``size`` - 1, in order."""
    token = secrets.token_hex(16)
    found: dict[int, _Link] = {}
    with socket.create_server((address, 0), backlog=size) as listener:
        listener.settimeout(seconds)
        store.set("links", f"{listener.getsockname()[1]} {token}")
        while len(found) < size - 1:
            link = _Link(listener.accept()[0], _GREETING)
            # Any program of the host may connect to the port, and say something else or nothing.
            with contextlib.suppress(OSError):
                if link.read(len(token)) == token.encode():
                    found[_HEAD.unpack(link.read(_HEAD.size))[1]] = link
                    continue
            link.close()
    return [found[shard] for shard in range(1, size)]
