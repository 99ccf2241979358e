"""Starts the processes of a job on this machine, and acts as their agent and operator."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

DEADLINE = 240.0
HERE = pathlib.Path(__file__).parent
_tried = itertools.count()


def until(what, condition, seconds=DEADLINE):
    """Waits until ``condition()`` returns a true value, and returns it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


def free_port(address):
    """A free port below the kernel's ephemeral ports. The kernel could give an ephemeral port to a
    connection before the process listens on it."""
    while True:
        port = 20_000 + (os.getpid() * 31 + next(_tried)) % 12_000
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.bind((address, port))
            return port


class Worker:
    """A worker of one process, or a further process of the worker of ``first``."""

    def __init__(self, world, index, variables, first=None, rank=0):
        self.index = index
        self.address = world.address_of(index)
        self.port = first.port if first else free_port(self.address)
        self.dir = first.dir if first else world.dir / f"worker-{index}-{len(world.all)}"
        if first is None:
            self.dir.mkdir()
        self.membership = self.dir / "membership"
        self.rank_file = f"rank-{rank}"
        self.log = self.dir / ("log" if rank == 0 else f"log-{rank}")
        environment = {
            **os.environ,
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": "1",
            "ROUNDHOUSE_JOB_UID": "0c9f1e5a",
            "ROUNDHOUSE_POD_IP": self.address,
            "ROUNDHOUSE_RENDEZVOUS_PORT": str(self.port),
            "ROUNDHOUSE_MEMBERSHIP_FILE": str(self.membership),
            "ROUNDHOUSE_TRAINER_CONFIG_FILE": "none",
            "ROUNDHOUSE_RUN_DIR": str(self.dir),
            "ROUNDHOUSE_DATA_DIR": "none",
            "ROUNDHOUSE_FAULT_STEP_FILE": str(world.pace),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            **world.variables,
            **variables,
        }
        if world.starter is not None:
            self.process = world.starter.start(world.command[1:], environment, self.log)
            return
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(world.command, env=environment, stdout=log, stderr=subprocess.STDOUT)

    def status(self):
        """The status that the worker reports; {} before the first report."""
        try:
            return json.loads((self.dir / f"{self.rank_file}.json").read_text())
        except (OSError, ValueError):
            return {}

    def words(self):
        """The termination message of the worker, if it has written one."""
        try:
            return json.loads((self.dir / f"{self.rank_file}.failure.json").read_text())
        except OSError:
            return None

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)

    def is_gone(self):
        return self.process.poll() is not None

    def is_stopped(self):
        """Whether a signal has stopped the process."""
        return pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


class World:
    """A job whose workers the tests start and stop."""

    # A starter, which starts processes faster: see conftest.py.
    starter = None

    def __init__(self, directory, script, *arguments, checkpoints=False, every_steps=20, variables=None):
        self.dir = pathlib.Path(directory)
        self.command = [sys.executable, str(HERE / "scripts" / script), *map(str, arguments)]
        self.variables = dict(variables or {})
        self.state = self.dir / "state"
        self.pace = self.dir / "pace"
        if checkpoints:
            self.variables["ROUNDHOUSE_CHECKPOINT_DIR"] = str(self.state)
            self.variables["ROUNDHOUSE_CHECKPOINT_EVERY_STEPS"] = str(every_steps)
        self.all = []
        self.generation = 0

    def __enter__(self):
        return self

    def __exit__(self, kind, error, where):
        for worker in self.all:
            if not worker.is_gone():
                worker.kill()
            worker.process.wait()
        if error is not None:
            for worker in self.all:
                print(f"--- worker {worker.index}, exit code {worker.process.returncode}, {worker.status()}")
                print(worker.log.read_text()[-4000:])

    def slow(self, milliseconds):
        """Slows down each later step."""
        self.pace.write_text(str(milliseconds))

    @contextlib.contextmanager
    def steps_held(self, then=0):
        """Holds the steps while the block runs, so that no training ends before a new worker has
        joined it. ``then``: the pause of later steps in milliseconds."""
        self.slow(60_000)
        yield
        self.slow(then)

    def address_of(self, index):
        return f"127.0.0.{index + 1}"

    def start(self, index, **variables):
        worker = Worker(self, index, variables)
        self.all.append(worker)
        return worker

    def prepared(self, workers):
        """Waits until workers are in the lobby or stranded."""
        for worker in workers:
            def is_ready(worker=worker):
                assert not worker.is_gone(), f"worker {worker.index} ended with {worker.process.returncode}"
                return worker.status().get("phase") in ("Lobby", "Stranded", "Training", "Saving")

            until(f"worker {worker.index} is prepared", is_ready)

    def form(self, workers, others_leave=True):
        """Publishes the next generation, in which ``workers`` are the ranks in this order. All
        other workers leave, or get no membership."""
        self.generation += 1
        members = list(workers)
        for worker in self.all:
            if worker.is_gone():
                continue
            joins = worker in members
            if not joins and not others_leave:
                continue
            document = {
                "protocol": 1,
                "generation": self.generation,
                "action": "Join" if joins else "Leave",
                **(self.place_of(worker, members) if joins else {"nodeRank": 0, "nodes": 1, "procsPerWorker": 1}),
                "master": {"address": members[0].address, "port": members[0].port},
                "members": "",
                "life": self.life_of(worker),
                "incarnation": {"podUid": "", "restarts": 0},
                "issuedAt": "",
            }
            partial = worker.membership.with_suffix(".partial")
            partial.write_text(json.dumps(document))
            partial.rename(worker.membership)

    def life_of(self, worker):
        """The life of the worker's replica, if that has several pods."""
        return ""

    def place_of(self, worker, members):
        """The place of a worker of one process in the membership document."""
        return {"nodeRank": members.index(worker), "nodes": len(members), "procsPerWorker": 1}

    def begin(self, number, fault=None):
        """Starts a number of workers and their first generation. ``fault``: for the rank that it
        names first."""
        doomed = {} if fault is None else {int(fault.split(":")[0]): {"ROUNDHOUSE_FAULT": fault}}
        workers = [self.start(index, **doomed.get(index, {})) for index in range(number)]
        self.prepared(workers)
        self.form(workers, others_leave=False)
        return workers

    def replace_killed(self, killed, number=2, **variables):
        """Starts a number of workers, of which ``killed`` ends by itself because of its
        ``variables``. A new worker takes its place as the last rank, and the training ends."""
        newcomer = self.start(number)
        self.prepared([newcomer])
        workers = [self.start(index, **(variables if index == killed else {})) for index in range(number)]
        self.prepared(workers)
        self.form(workers, others_leave=False)
        until("the worker is killed", workers[killed].is_gone)
        left = [*workers[:killed], *workers[killed + 1 :], newcomer]
        self.form(left)
        self.ends(left)

    def end_without_first(self, workers, place=None):
        """Waits until the first of ``workers`` is killed. The others end the training, with a new
        worker at ``place`` among the ranks unless it is None. Returns the workers that end."""
        until("rank 0 is killed", workers[0].is_gone)
        left = workers[1:]
        if place is not None:
            newcomer = self.start(0)
            self.prepared([newcomer])
            left.insert(place, newcomer)
        self.form(left)
        self.ends(left)
        return left

    def restart_after(self, step):
        """Kills both workers of a job after a number of steps, and ends the training with three new
        workers, which read the checkpoint. Returns the new workers."""
        self.slow(150)
        workers = self.begin(2)
        self.reach(workers, step)
        for worker in workers:
            worker.kill()
        until("both are gone", lambda: all(worker.is_gone() for worker in workers))
        self.slow(0)
        later = [self.start(index) for index in range(3)]
        self.prepared(later)
        self.form(later)
        self.ends(later)
        return later

    def step(self, worker):
        return worker.status().get("step", 0)

    def reach(self, workers, step):
        """Waits until workers have committed this number of steps in the newest generation."""
        for worker in workers:
            def is_there(worker=worker):
                status = worker.status()
                if status.get("phase") == "Done":
                    return True
                assert not worker.is_gone(), f"worker {worker.index} ended with {worker.process.returncode}"
                return status.get("generation") == self.generation and status.get("step", 0) >= step

            until(f"worker {worker.index} is at step {step}", is_there)

    def ends(self, workers, code=0):
        for worker in workers:
            until(f"worker {worker.index} ends", worker.is_gone)
            assert worker.process.returncode == code, (worker.index, worker.process.returncode)
