"""The processes of both sides. They run at the same time, and one side trains while the other side
waits."""
import contextlib
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Listener, wait
from typing import NamedTuple

from replicas import ReplicaWorld
from world import World, free_port

HERE = pathlib.Path(__file__).parent
LIMIT_SECONDS = 300
# Processes of a replica.
SIZE = 2
# rh.join raises the thresholds of glibc's allocator to these values. The other side gets them too,
# so that the difference is that of the steps.
THRESHOLDS = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}


class Peer(NamedTuple):
    """What roundhouse is compared with, and the scripts of both sides."""

    title: Callable[[int], str]
    plain: str
    elastic: str
    # Whether the processes share the model.
    is_sharded: bool = False


PEERS = {
    "bare": Peer(lambda _: "the bare model", "plain.py", "elastic.py"),
    "ddp": Peer(lambda _: "DDP", "plain.py", "elastic.py"),
    "fsdp": Peer(lambda world: "FSDP2" if world == SIZE else "HSDP", "plain_sharded.py", "elastic_sharded.py", is_sharded=True),
    "trainer": Peer(lambda _: "transformers.Trainer", "plain_trainer.py", "elastic_trainer.py"),
    "lightning": Peer(lambda _: "lightning.Trainer", "plain_lightning.py", "elastic_lightning.py"),
}


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
def plain(kind, name, world):
    """The side without roundhouse. One rank needs no launcher, and starts without its variables if
    that trains the bare model."""
    variables = os.environ | {"OMP_NUM_THREADS": "1"} | THRESHOLDS
    launched = kind != "bare" and (kind == "ddp" or world > 1)
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port("127.0.0.1")), "WORLD_SIZE": str(world)}
    with listening() as listener:
        command = [sys.executable, HERE / PEERS[kind].plain, name, str(listener.address[1])]
        ranks = [
            subprocess.Popen(command, env=variables | (master | {"RANK": str(rank), "LOCAL_RANK": str(rank)} if launched else {}))
            for rank in range(world)
        ]
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
def elastic(kind, name, world, directory):
    """The side with roundhouse. Ledger and agreement are as in a job, but no checkpoint is written
    while it is timed."""
    with listening() as listener:
        arguments = [HERE / PEERS[kind].elastic, name, listener.address[1]]
        options = {"checkpoints": True, "every_steps": 1_000_000_000, "variables": {"BENCH_WORLD": str(world)}}
        if PEERS[kind].is_sharded:
            job = ReplicaWorld(directory, *arguments, size=SIZE, **options)
            begin = lambda: [one for replica in job.begin_replicas(world // SIZE) for one in replica.processes]
        else:
            job = World(directory, *arguments, **options)
            begin = lambda: job.begin(world)
        with job:
            workers = begin()
            side = Side(listener, world)
            yield side
            side.end()
            job.ends(workers)
