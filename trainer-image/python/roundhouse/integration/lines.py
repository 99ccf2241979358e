"""The connections of the ranks with rank 0 after the training, by which it reports what it has
written. They end with the process of rank 0."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import selectors
import socket
import sys
import time
import traceback
import weakref
from collections import Counter
from collections.abc import Iterable

from ..groups import Group

# Seconds that rank 0 waits for the connections of the others.
_TIMEOUT = 60.0
# Seconds between two checks for Ctrl-C.
_LOOK_INTERVAL = 0.5
_TOKEN_BYTES = 16
# Rank 0 sends the keys of each call that has written. When its script ends, it sends _ENDED.
_KEY_BYTES = 16
_ENDED = bytes(_KEY_BYTES)

# The keys of a call of the script that writes, each with the number of calls that have the key,
# this one included.
Call = list[tuple[bytes, int]]


class Calls:
    """The calls of the script that have written.

    Their number is not enough, because rank 0 may make calls that the other ranks do not make. Two
    ranks make the same call if it is at the same place of the script, as the name of a file may
    contain the time; or if it has the same target, as rank 0 may call from a place of its own.
    """

    def __init__(self) -> None:
        self.keys: list[bytes] = []

    def following(self, target: str) -> Call:
        """The call that the script makes now, which writes ``target``."""
        return [(key, self.keys.count(key) + 1) for key in (_key(_place()), _key(f"target {target}"))]

    def add(self, call: Call) -> None:
        """Must be called when the call has written."""
        self.keys += [key for key, _ in call]


def _key(words: str) -> bytes:
    return hashlib.blake2b(words.encode(errors="surrogateescape"), digest_size=_KEY_BYTES).digest()


def _place() -> str:
    """The functions and lines of all frames of the current call."""
    return " ".join(f"{frame.f_code.co_name}:{line}" for frame, line in traceback.walk_stack(sys._getframe()))


# The lines of this process. A child process that the script forks must not keep them open: it may
# outlive rank 0.
_lines: weakref.WeakSet[Line] = weakref.WeakSet()


def _close_all() -> None:
    for line in _lines:
        line.close()


os.register_at_fork(after_in_child=_close_all)


class Line:
    """The connections of a generation's ranks with its rank 0. ``is_first``: whether this rank is
    that one."""

    def __init__(self, is_first: bool, connections: list[socket.socket]):
        self._is_first, self._connections = is_first, connections
        self._received = b""
        self._written: Counter[bytes] = Counter()
        # Whether the script of rank 0 has ended.
        self.has_ended = False
        self._is_lost = False
        _lines.add(self)

    def report_or_wait(self, call: Call) -> bool:
        """Reports on rank 0 that the call has written. Another rank waits for the report, and
        returns False if rank 0 ends or is lost before it."""
        if self._is_first:
            self.report([key for key, _ in call])
            return True
        while not (self._has(call) or self.has_ended or self._is_lost):
            self._receive(_LOOK_INTERVAL)
        return self._has(call)

    def _has(self, call: Call) -> bool:
        return any(self._written[key] >= number for key, number in call)

    def report(self, keys: Iterable[bytes]) -> None:
        """Reports on rank 0 the keys of calls that have written."""
        self._send(b"".join(keys))

    def is_lost(self) -> bool:
        """Whether rank 0 was lost before its script had ended."""
        while not (self._is_first or self.has_ended or self._is_lost) and self._receive(0.0):
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
        self._is_lost = not words
        self._received += words
        whole = len(self._received) // _KEY_BYTES * _KEY_BYTES
        keys = [self._received[start : start + _KEY_BYTES] for start in range(0, whole, _KEY_BYTES)]
        self._received = self._received[whole:]
        self._written.update(keys)
        self.has_ended |= _ENDED in keys
        return True


def open_line(group: Group | None, written: Calls) -> Line | None:
    """The connections of a new generation; None if rank 0 does not answer. ``written``: what other
    ranks need not wait for, if this one is rank 0."""
    if group is None:
        return Line(True, [])
    try:
        if group.rank > 0:
            return Line(False, [_dial(group)])
        with group.waiting():
            line = Line(True, _accepted(group))
    except (OSError, RuntimeError):
        return None  # The store is gone with rank 0.
    line.report(written.keys)
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
        while len(connections) < group.size - 1 and time.monotonic() < ends_at and not group.is_aborted:
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
