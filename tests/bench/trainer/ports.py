"""Ports for the processes of the benchmarks."""
import contextlib
import itertools
import os
import socket

_tried = itertools.count()


def free_port():
    """A free port below the kernel's ephemeral ports. The kernel could give an ephemeral port to a
    connection before a process listens on it."""
    while True:
        port = 20_000 + (os.getpid() * 31 + next(_tried)) % 12_000
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
