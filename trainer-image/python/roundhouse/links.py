"""Connections between the processes of a replica, for the few numbers on which they agree several
times in each step.

Each process sends one message to the first process, which adds the numbers
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
import time
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn

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
    # The processes called different collectives.
    MISMATCH = 4
    # The script writes its result, and leaves the job.
    RESULT = 5
    END = 6


# What a user knows of each subject.
_WORDS = {
    Subject.SUM: "a sum",
    Subject.HOLDS: "the outcome of a collective",
    Subject.VOTE: "the vote of job.commit",
    Subject.PASS: "a pass of the model",
    Subject.RESULT: "job.save_result",
    Subject.END: "the end of the job",
}


class Call(NamedTuple):
    """A collective that process ``shard`` has called. ``length``: the number of its values."""

    shard: int
    subject: Subject
    length: int

    def words(self) -> str:
        numbers = f" of {self.length} numbers" if self.length > 0 else ""
        return f"process {self.shard} is at {_WORDS[self.subject]}{numbers}"


class CollectiveMismatch(ConnectionError):
    """Two processes of a replica have called different collectives, or the same one with different
    numbers of values. All processes get the same error."""

    def __init__(self, first: Call, other: Call):
        super().__init__(f"{first.words()}, and {other.words()}")
        self.calls = first, other
        self.subjects = {first.subject, other.subject}


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

    def head(self) -> tuple[Subject, int]:
        """The subject and the length of a message."""
        subject, length = _HEAD.unpack(self.read(_HEAD.size))
        return Subject(subject), length

    def numbers(self, length: int) -> list[float] | None:
        """The rest of a message."""
        return None if length == _NONE else array("d", self.read(8 * length)).tolist()

    def read(self, length: int, ends_at: float | None = None) -> bytes:
        """Reads bytes, for which the other process may take the timeout each, or until
        ``ends_at`` for all."""
        # A buffered reader has a lock. If another thread forks while this one reads, the child
        # process would wait for the lock forever when it closes the connection.
        data = bytearray()
        while len(data) < length:
            if ends_at is not None:
                self.set_timeout(max(0.0, ends_at - time.monotonic()))
            piece = self.connection.recv(length - len(data))
            if not piece:
                raise ConnectionError("the connection was closed by a process of the replica")
            data += piece
        return bytes(data)

    def shut_down(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        # A close alone would not wake another thread that waits for a message.
        self.shut_down()
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

        Raises OSError if a process is lost, and :class:`CollectiveMismatch` if one calls it with
        another subject or length. Then the connections are closed, so that all processes get an
        error, and later sums raise one at once."""
        try:
            return self._sum(subject, numbers)
        except BaseException:
            # A process may wait for this one, which waits for another one. After an interrupt, half
            # a message may be left.
            self.close()
            raise

    def _sum(self, subject: Subject, numbers: Sequence[float] | None) -> list[float] | None:
        if not self._is_first:
            return self._answer(subject, numbers)
        total = None if numbers is None else list(numbers)
        own = _NONE if total is None else len(total)
        for shard, link in enumerate(self._links, 1):
            theirs, length = link.head()
            has_other_length = _NONE not in (own, length) and length != own
            if theirs != subject or has_other_length:
                self._refuse(Call(0, subject, own), Call(shard, theirs, length))
            others = link.numbers(length)
            if total is None or others is None:
                total = None
            else:
                total = [one + other for one, other in zip(total, others)]
        for link in self._links:
            link.send(subject, total)
        return total

    def _answer(self, subject: Subject, numbers: Sequence[float] | None) -> list[float] | None:
        """The sums from the first process."""
        (link,) = self._links
        failure = None
        try:
            link.send(subject, numbers)
        except ConnectionError as error:
            # The first process may have refused the call of another process, and closed.
            failure = error
        theirs, length = link.head()
        found = link.numbers(length)
        if theirs == Subject.MISMATCH:
            assert found is not None
            first, other = (Call(int(shard), Subject(int(kind)), int(size)) for shard, kind, size in (found[:3], found[3:]))
            raise CollectiveMismatch(first, other)
        if failure is not None:
            raise failure
        return found

    def is_closed(self) -> bool:
        """Whether a connection is closed, for example because the other process has ended. Returns
        at once."""
        ends = select.poll()
        for link in self._links:
            if link.connection.fileno() < 0:
                return True  # This process has closed it.
            ends.register(link.connection, select.POLLRDHUP)
        return bool(ends.poll(0))

    def _refuse(self, first: Call, other: Call) -> NoReturn:
        """Lets all processes know why they get an error, and raises it."""
        for link in self._links:
            with contextlib.suppress(OSError):
                link.send(Subject.MISMATCH, [*first, *other])
        raise CollectiveMismatch(first, other)

    def close(self) -> None:
        """Closes the connections. The other processes notice it, and so does another thread that
        waits in :meth:`sum`."""
        for link in self._links:
            link.close()

    def shut_down(self) -> None:
        """Ends the connections, for another thread that may wait for them."""
        for link in self._links:
            link.shut_down()

    def close_in_child(self) -> None:
        """Closes the copies of the connections in a forked process. The connections stay."""
        for link in self._links:
            link.connection.close()


def _accepted(store: dist.Store, size: int, address: str, seconds: float) -> list[_Link]:
    """The connections from processes 1 to ``size`` - 1, in order."""
    token = secrets.token_hex(16)
    found: dict[int, _Link] = {}
    with socket.create_server((address, 0), backlog=size) as listener:
        listener.settimeout(seconds)
        store.set("links", f"{listener.getsockname()[1]} {token}")
        while len(found) < size - 1:
            link, ends_at = _Link(listener.accept()[0], _GREETING), time.monotonic() + _GREETING
            # Any program of the host may connect to the port, and say something else or nothing.
            with contextlib.suppress(OSError):
                if link.read(len(token), ends_at) == token.encode():
                    found[_HEAD.unpack(link.read(_HEAD.size, ends_at))[1]] = link
                    continue
            link.close()
    return [found[shard] for shard in range(1, size)]
