"""Starts the trainer's processes and issues generations to them by writing their membership
files."""
import json
import os
import pathlib
import re
import signal
import subprocess
import time

from ports import free_port


def replace(path, text):
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.rename(path)


# The most seconds for any wait; None: the limit of the caller.
MAX_WAIT_SECONDS = None
# When true, all waits end with an error.
IS_OVER = False


def until(what, is_so, seconds=120):
    """Waits for a condition; raises `TimeoutError` if it does not become true in time."""
    seconds = seconds if MAX_WAIT_SECONDS is None else min(seconds, MAX_WAIT_SECONDS)
    deadline = time.monotonic() + seconds
    while not is_so():
        if IS_OVER:
            raise TimeoutError(f"{what}: the run was interrupted before")
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(0.02)


def output_of_rank_0(commands, variables):
    """Runs one command for each rank with the variables of the rank, and returns the output of rank
    0."""
    ranks = [
        subprocess.Popen(command, env=os.environ | own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for command, own in zip(commands, variables)
    ]
    outputs = [rank.communicate() for rank in ranks]
    for rank, (_, errors) in zip(ranks, outputs):
        if rank.returncode:
            raise RuntimeError(f"{rank.args[0]} failed: {errors[-2000:]}")
    return outputs[0][0]


class World:
    """Workers with one process each, in one directory. Use it in a `with` block, which kills
    remaining processes."""

    procs_per_worker = 1
    # The life of a replica of several workers.
    life = ""

    def __init__(self, trainer, directory, data, config, nodes, variables=None):
        self.trainer, self.directory, self.data = trainer, pathlib.Path(directory), pathlib.Path(data)
        self.variables = variables or (lambda node: {})
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "config").write_text(json.dumps(config))
        self.ports = [free_port() for _ in range(nodes)]
        self.restarts = [0] * nodes
        self.processes = [None] * nodes
        for node in range(nodes):
            self.start(node)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()

    def start(self, node):
        """Starts a worker's process, or restarts it after its end."""
        run = self.directory / f"run-{node}"
        run.mkdir(exist_ok=True)
        (run / "rank-0.json").unlink(missing_ok=True)
        (self.directory / f"membership-{node}").unlink(missing_ok=True)
        own = {
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "ROUNDHOUSE_POD_IP": "127.0.0.1",
            "ROUNDHOUSE_RENDEZVOUS_PORT": str(self.ports[node]),
            "ROUNDHOUSE_MEMBERSHIP_FILE": str(self.directory / f"membership-{node}"),
            "ROUNDHOUSE_TRAINER_CONFIG_FILE": str(self.directory / "config"),
            "ROUNDHOUSE_RUN_DIR": str(run),
            "ROUNDHOUSE_DATA_DIR": str(self.data),
            "ROUNDHOUSE_CHECKPOINT_DIR": str(self.directory / "state"),
            "ROUNDHOUSE_CHECKPOINT_EVERY_SECONDS": "100000",
            "ROUNDHOUSE_SAVE_WEIGHTS": str(self.directory / "weights.safetensors"),
        }
        with (self.directory / f"log-{node}").open("a") as log:
            self.processes[node] = subprocess.Popen(
                [self.trainer], env=os.environ | own | self.variables(node), stdout=log, stderr=log
            )

    def status_file(self, node):
        return self.directory / f"run-{node}" / "rank-0.json"

    def status(self, node):
        try:
            return json.loads(self.status_file(node).read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return {"phase": "Preparing", "step": 0, "generation": 0}

    def step(self, node=0):
        return self.status(node)["step"]

    def metric(self, node, name):
        """The value of a metric without labels; `None` if the metric is absent."""
        return self.metrics(node).get(name)

    def metrics(self, node):
        """The values of all metrics without labels, by name."""
        found = re.findall(r"^roundhouse_train_(\w+) (\S+)$", self.exposition(node), re.MULTILINE)
        return {name: float(value) for name, value in found}

    def labels(self, node, name, label):
        """The values of a label in the series of a metric."""
        return re.findall(rf'^roundhouse_train_{name}{{{label}="([^"]*)"}}', self.exposition(node), re.MULTILINE)

    def exposition(self, node):
        """The metrics file of the worker's process; empty until the process writes it."""
        try:
            return (self.directory / f"run-{node}" / "rank-0.prom").read_text()
        except FileNotFoundError:
            return ""

    def prepared(self, nodes, seconds=120):
        """Waits until workers are in the lobby or in a later phase."""
        self.until("the lobby", lambda: all(self.status(node)["phase"] != "Preparing" for node in nodes), seconds)

    def issue(self, generation, nodes):
        """Issues a generation: the workers get the ranks in this order."""
        for rank, node in enumerate(nodes):
            document = {
                "life": self.life,
                "generation": generation,
                "action": "Join",
                "nodeRank": rank,
                "nodes": len(nodes),
                "procsPerWorker": self.procs_per_worker,
                "master": {"address": "127.0.0.1", "port": self.ports[nodes[0]]},
                "members": "-".join(map(str, nodes)),
                "incarnation": {"podUid": str(node), "restarts": self.restarts[node]},
                "issuedAt": "2026-01-01T00:00:00Z",
            }
            replace(self.directory / f"membership-{node}", json.dumps(document))

    def kill(self, node, number=signal.SIGKILL):
        self.processes[node].send_signal(number)
        if number == signal.SIGKILL:
            self.processes[node].wait()

    def complete(self, nodes, seconds=120):
        """Waits until workers have ended, and checks that their exit codes are 0."""
        self.until("the end", lambda: all(self.processes[node].poll() is not None for node in nodes), seconds)
        codes = [self.processes[node].returncode for node in nodes]
        if any(codes):
            raise RuntimeError(f"exit codes {codes}\n{self.logs()}")

    def until(self, what, is_so, seconds=120):
        try:
            until(what, is_so, seconds)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.logs()}") from None

    def logs(self):
        return "\n".join(
            f"--- worker {node}\n" + (self.directory / f"log-{node}").read_text()[-1500:] for node in range(len(self.ports))
        )
