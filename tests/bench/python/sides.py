"""The processes of both sides. All of them live at the same time, and one side trains while the other one waits."""
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
    """Some steps of one side: seconds of a step of rank 0, of CPU time of all ranks for a step, and losses of rank 0."""

    seconds: float
    cpu_seconds: float
    losses: list[float]


class Side:
    """The ranks of one side, each at the end of its first step."""

    def __init__(self, listener, world):
        found = {}
        for _ in range(world):
            connection = listener.accept()
            found[connection.recv()] = connection
        self.ranks = [found[rank] for rank in range(world)]

    def train(self, num_steps):
        """So many steps; for the first turn of a side the losses begin with its first step."""
        for rank in self.ranks:
            rank.send(num_steps)
        told = []
        for rank in self.ranks:
            if not wait([rank], LIMIT_SECONDS):
                raise TimeoutError(f"{num_steps} steps: not within {LIMIT_SECONDS} s")
            told.append(rank.recv())
        return Turn(told[0][0] / num_steps, sum(cpu for _, cpu, _ in told) / num_steps, told[0][2])

    def end(self):
        for rank in self.ranks:
            rank.send(0)


@contextlib.contextmanager
def listening():
    """A listener that gives up on processes that have failed."""
    with Listener(("127.0.0.1", 0), backlog=8) as listener:
        # multiprocessing has no timeout of its own.
        listener._listener._socket.settimeout(LIMIT_SECONDS)
        yield listener


@contextlib.contextmanager
def plain(name, world, is_bare):
    """PyTorch alone; a bare model needs no peer."""
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
    """The same with roundhouse: ledger and agreement as in a job, and no checkpoint while it is timed."""
    with listening() as listener:
        arguments = [HERE / "elastic.py", name, listener.address[1]]
        with World(directory, *arguments, checkpoints=True, every_steps=1_000_000_000) as job:
            workers = job.begin(world)
            side = Side(listener, world)
            yield side
            side.end()
            job.ends(workers)
