"""The TCP connections of a Gloo group, and the connection to a store.

Neither Gloo nor a store has an abort, so an abort closes these connections. A thread that waits for
data on one of them, in this process or in a peer, then gets an error at once.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

_FAMILIES = (socket.AF_INET, socket.AF_INET6)


def open_sockets() -> dict[int, int]:
    """The sockets of this process: descriptors by inode.

    Descriptors alone do not identify a socket: if another thread closes a socket, a new socket can
    reuse its descriptor.
    """
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            found[int(target[8:-1])] = int(name)
    return found


def opened_to(port: int, before: dict[int, int]) -> int | None:
    """The inode of the socket that was opened since ``before`` (from :func:`open_sockets`) to a
    port of a peer."""
    found = None
    for inode, own in _opened_since(before):
        with own:
            ends = _ends_of(own)
            if ends is not None and ends[1][1] == port:
                found = inode
    return found


def cut(inode: int) -> None:
    """Closes a connection in both directions, if it still exists."""
    descriptor = open_sockets().get(inode)
    if descriptor is None:
        return
    try:
        second = os.dup(descriptor)
    except OSError:
        return  # Another thread has closed the socket.
    if os.fstat(second).st_ino != inode:
        os.close(second)  # Another thread has reused the descriptor.
        return
    with socket.socket(fileno=second) as own:
        _shut_down(own)


class Connections:
    """The connections to some peers that were opened since a point in time."""

    def __init__(self, before: dict[int, int], addresses: set[str], store_ports: set[int]):
        """``before``: from :func:`open_sockets`. ``addresses``: those of the peers.
        ``store_ports``: ports of stores, whose connections are left out."""
        self._sockets: list[socket.socket] = []
        for _, own in _opened_since(before):
            if _is_of(own, addresses, store_ports):
                self._sockets.append(own)
            else:
                own.close()

    def __len__(self) -> int:
        return len(self._sockets)

    def is_one_ended(self) -> bool:
        """Whether a peer has closed a connection and this process has read all its data."""
        return any(_is_ended(own) for own in self._sockets)

    def cut(self) -> None:
        """Closes all connections in both directions."""
        for own in self._sockets:
            _shut_down(own)

    def close(self) -> None:
        """Releases the duplicates of the sockets; while they exist, the connections stay open for
        the peers."""
        for own in self._sockets:
            own.close()
        self._sockets = []


def _opened_since(before: dict[int, int]) -> Iterator[tuple[int, socket.socket]]:
    """Duplicates of the TCP sockets that are not in ``before``, each with its inode."""
    for inode, descriptor in open_sockets().items():
        if inode in before:
            continue
        try:
            second = os.dup(descriptor)
        except OSError:
            continue  # Another thread has closed the socket.
        try:
            own = socket.socket(fileno=second)
        except OSError:
            os.close(second)
            continue
        yield inode, own


def _ends_of(own: socket.socket) -> tuple[Any, Any] | None:
    """The local and the remote address of a TCP connection; None for another socket."""
    if own.family not in _FAMILIES or own.type != socket.SOCK_STREAM:
        return None
    try:
        return own.getsockname(), own.getpeername()
    except OSError:
        return None  # The socket listens or is closed.


def _is_of(own: socket.socket, addresses: set[str], store_ports: set[int]) -> bool:
    ends = _ends_of(own)
    return ends is not None and ends[1][0] in addresses and not {ends[0][1], ends[1][1]} & store_ports


def _is_ended(own: socket.socket) -> bool:
    try:
        return own.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True


def _shut_down(own: socket.socket) -> None:
    try:
        own.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # The connection is closed already.
