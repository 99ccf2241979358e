"""The TCP connections of a Gloo group.

Gloo has no abort, so a group is cut off by cutting these: a thread that waits for data on one of them, here or at its
other end, gets an error at once.
"""

from __future__ import annotations

import os
import socket

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


class Connections:
    """The connections to some peers that were opened since."""

    def __init__(self, before: dict[int, int], addresses: set[str], store_ports: set[int]):
        """``before``: from :func:`open_sockets`. ``addresses``: of the peers. ``store_ports``: of stores, which stay."""
        self._sockets: list[socket.socket] = []
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
            if _is_of(own, addresses, store_ports):
                self._sockets.append(own)
            else:
                own.close()

    def __len__(self) -> int:
        return len(self._sockets)

    def cut(self) -> None:
        """Ends all of them, in both directions."""
        for own in self._sockets:
            try:
                own.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # It has ended by itself.

    def close(self) -> None:
        """Lets them go: while they are held they stay open for the peers, too."""
        for own in self._sockets:
            own.close()
        self._sockets = []


def _is_of(own: socket.socket, addresses: set[str], store_ports: set[int]) -> bool:
    if own.family not in _FAMILIES or own.type != socket.SOCK_STREAM:
        return False
    try:
        here, there = own.getsockname(), own.getpeername()
    except OSError:
        return False  # It listens, or is closed.
    return there[0] in addresses and not {here[1], there[1]} & store_ports
