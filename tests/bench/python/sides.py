"""The processes of both sides. They run at the same time, and one side trains while the other side
waits."""
import contextlib
import os
import pathlib
import subprocess
import sys
from multiprocessing.connection import Listener, wait
from typing import NamedTuple

from world import World, free_port

HERE = pathlib.Path(__file__).parent
LIMIT_SECONDS = 300


class Turn(NamedTuple):
    """Some steps of one side: seconds per step of rank 0, CPU seconds per step of all ranks, and
    the losses of rank 0."""

    seconds: float
    cpu_seconds: float
    losses: list[float]


class Side:
    """The ranks of one side. Each has completed its first step."""

    def __init__(self, listener, world):
        found = {}
        for _ in range(world):
            connection = listener.accept()
            found[connection.recv()] = connection
        self.ranks = [found[rank] for rank in range(world)]

    def train(self, num_steps):
        """Makes a number of steps. The losses of a side's first turn include its first step."""
        for rank in self.ranks:
            rank.send(num_steps)
        reports = []
        for rank in self.ranks:
            if not wait([rank], LIMIT_SECONDS):
                raise TimeoutError(f"{num_steps} steps: not within {LIMIT_SECONDS} s")
            reports.append(rank.recv())
        return Turn(reports[0][0] / num_steps, sum(cpu for _, cpu, _ in reports) / num_steps, reports[0][2])

    def end(self):
        for rank in self.ranks:
            rank.send(0)


@contextlib.contextmanager
def listening():
    """A listener with a timeout, for processes that fail before they connect."""
    with Listener(("127.0.0.1", 0), backlog=8) as listener:
        # multiprocessing.connection.Listener has no timeout.
        listener._listener._socket.settimeout(LIMIT_SECONDS)
        yield listener


@contextlib.contextmanager
def plain(name, world, is_bare):
    """The side with PyTorch alone. A bare model needs no process group."""
    variables = os.environ | {"OMP_NUM_THREADS": "1"}
    with listening() as listener:
        command = [sys.executable, HERE / "plain.py", "--model", name, "--port", str(listener.address[1])]
        command += ["--world", str(world), "--master-port", str(free_port("127.0.0.1"))]
        command += ["--bare"] if is_bare else []
        ranks = [subprocess.Popen([*command, "--rank", str(rank)], env=variables) for rank in range(world)]
        try:
            side = Side(listener, world)
            yield side
            side.end()
            for rank in ranks:
                rank.wait(LIMIT_SECONDS)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()


@contextlib.contextmanager
def elastic(name, world, directory):
    """The side with roundhouse. Ledger and agreement are as in a job, but no checkpoint is written
    while it is timed."""
    with listening() as listener:
        arguments = [HERE / "elastic.py", name, listener.address[1]]
        with World(directory, *arguments, checkpoints=True, every_steps=1_000_000_000) as job:
            workers = job.begin(world)
            side = Side(listener, world)
            yield side
            side.end()
            job.ends(workers)
