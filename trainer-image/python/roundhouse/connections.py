"""The TCP connections of a Gloo group, and that to a store.

Neither Gloo nor a store has an abort, so they are cut off by cutting these: a thread that waits for data on one of them,
here or at its other end, gets an error at once.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

_FAMILIES = (socket.AF_INET, socket.AF_INET6)


def open_sockets() -> dict[int, int]:
    """The sockets of this process: descriptors by inode.

    Numbers of descriptors alone say nothing: a socket that another thread closes leaves its number to a later one.
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
    """The socket that was opened since, to a port of a peer: its inode. ``before``: from :func:`open_sockets`."""
    found = None
    for inode, own in _opened_since(before):
        with own:
            ends = _ends_of(own)
            if ends is not None and ends[1][1] == port:
                found = inode
    return found


def cut(inode: int) -> None:
    """Ends a connection, in both directions, if it is still there."""
    descriptor = open_sockets().get(inode)
    if descriptor is None:
        return
    try:
        second = os.dup(descriptor)
    except OSError:
        return  # Another thread has closed it.
    if os.fstat(second).st_ino != inode:
        os.close(second)  # It has, and has opened something else.
        return
    with socket.socket(fileno=second) as own:
        _shut_down(own)


class Connections:
    """The connections to some peers that were opened since."""

    def __init__(self, before: dict[int, int], addresses: set[str], store_ports: set[int]):
        """``before``: from :func:`open_sockets`. ``addresses``: of the peers. ``store_ports``: of stores, which stay."""
        self._sockets: list[socket.socket] = []
        for _, own in _opened_since(before):
            if _is_of(own, addresses, store_ports):
                self._sockets.append(own)
            else:
                own.close()

    def __len__(self) -> int:
        return len(self._sockets)

    def is_one_ended(self) -> bool:
        """Whether a peer has ended one of them and all that it has sent is read."""
        return any(_is_ended(own) for own in self._sockets)

    def cut(self) -> None:
        """Ends all of them, in both directions."""
        for own in self._sockets:
            _shut_down(own)

    def close(self) -> None:
        """Lets them go: while they are held they stay open for the peers, too."""
        for own in self._sockets:
            own.close()
        self._sockets = []


def _opened_since(before: dict[int, int]) -> Iterator[tuple[int, socket.socket]]:
    """Second descriptors of the TCP connections that are not in ``before``, each with its inode."""
    for inode, descriptor in open_sockets().items():
        if inode in before:
            continue
        try:
            second = os.dup(descriptor)
        except OSError:
            continue  # Another thread has closed it.
        try:
            own = socket.socket(fileno=second)
        except OSError:
            os.close(second)
            continue
        yield inode, own


def _ends_of(own: socket.socket) -> tuple[Any, Any] | None:
    """The two addresses of a TCP connection; None for another socket."""
    if own.family not in _FAMILIES or own.type != socket.SOCK_STREAM:
        return None
    try:
        return own.getsockname(), own.getpeername()
    except OSError:
        return None  # It listens, or is closed.


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
        pass  # It has ended by itself.
