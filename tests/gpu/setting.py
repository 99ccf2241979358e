"""What all parts share: programs, data, worlds of workers, and what a training leaves behind."""
import concurrent.futures
import dataclasses
import itertools
import json
import pathlib
import struct
import subprocess
import sys
import time
import traceback
import typing

import machine
import numpy
import ours
from world import World

STEPS = 40


@dataclasses.dataclass
class Setting:
    trainer: pathlib.Path
    faulty: pathlib.Path
    """The trainer that can be told to fail at a point."""
    place: pathlib.Path
    here: machine.Machine
    at_once: int
    """Trainings that run at the same time, where no time is measured."""
    deadline: float = float("inf")
    """No case begins after it (`time.monotonic`), where a part may leave some out."""
    rounds: int = 1
    """How often a speed is measured, in turns with PyTorch's."""
    num_failed: int = 0
    num_left_out: int = 0
    note: typing.Callable = lambda *_: None
    """Receives each row of a part as soon as it is known."""

    def __post_init__(self):
        self.data = self.place / "data"
        ours.write_data(self.data)
        self.numbers = itertools.count()

    def world(self, config, nodes, here=None, data=None, told=None, trainer=None):
        """Workers of one process. `told` has more variables by worker; what is in it when a worker starts counts."""
        here, told = here or self.here, told if told is not None else {}
        directory = self.place / f"job-{next(self.numbers)}"
        return World(
            trainer or self.trainer, directory, data or self.data, config, nodes,
            lambda node: here.variables(node) | nccl_log(directory, node) | told.get(node, {}),
        )

    def audit(self, world):
        command = [self.trainer, "audit", world.directory / "state"]
        found = subprocess.run(command, capture_output=True, text=True, env={"LD_LIBRARY_PATH": self.here.library_path})
        assert found.returncode == 0 and "proven" in found.stdout, found.stdout + found.stderr

    def is_small(self):
        return self.here.device == "cpu"

    def num_steps(self, name, few=4):
        """Of a model of which a CPU makes few steps."""
        return few if self.is_small() and name != "mlp" else STEPS

    def each(self, cases):
        """Runs cases, pairs of a name and a function that returns what was found. One that fails does not stop the others."""

        def found(case):
            what, tried = case
            if time.monotonic() > self.deadline:
                self.num_left_out += 1
                return what, "not tried, for want of time"
            try:
                row = what, tried()
            except Exception as error:
                self.failed(error)
                row = what, failure(error)
            self.note(*row)
            return row

        with concurrent.futures.ThreadPoolExecutor(self.at_once) as pool:
            return list(pool.map(found, cases))

    def failed(self, error):
        self.num_failed += 1
        traceback.print_exception(error, file=sys.stderr)


def failure(error):
    """A cell of the table."""
    words = str(error).strip().splitlines()
    return f"FAILED: {words[0] if words else type(error).__name__}".replace("|", "\\|")


def nccl_log(directory, node):
    """Has NCCL say how it connects, where the trainer reads it, as the agent does."""
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET",
        "NCCL_DEBUG_FILE": str(directory / f"run-{node}" / "rank-0.nccl.log"),
    }


def config_of(name, steps=STEPS, **extra):
    config = ours.CONFIGURATIONS[name] | {"steps": steps, "seed": 7}
    if name == "resnet18":
        # Statistics over groups of places, so that the number of workers does not change them.
        config["model"] = config["model"] | {"ghostBatch": 8}
    return config | extra


@dataclasses.dataclass
class Trained:
    weights: dict
    losses: list
    """Of its steps, from the first on."""
    metrics: dict
    """Of worker 0 at the end, those without labels."""


def trained(setting, config, nodes, here=None, told=None, trainer=None):
    """A whole training of one generation."""
    with setting.world(config, nodes, here, told=told, trainer=trainer) as world:
        everybody = range(nodes)
        world.prepared(everybody)
        world.issue(1, everybody)
        world.complete(everybody, 300)
        return left(setting, world)


def left(setting, world):
    """What a training has left, which its ledger proves."""
    setting.audit(world)
    return Trained(weights_of(world), losses_of(world), world.metrics(0))


def weights_of(world):
    """Tensors of the safetensors file that rank 0 has written."""
    raw = (world.directory / "weights.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    body = raw[8 + length :]
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            tensors[name] = numpy.frombuffer(body[start:end], dtype=numpy.float32)
    return tensors


def losses_of(world):
    """Of each step, from the ledger; a loss that is not finite is NaN. A later generation's line counts."""
    losses = {}
    for path in sorted((world.directory / "state" / "ledger").iterdir()):
        for line in map(json.loads, path.read_text().splitlines()):
            if "loss" in line:
                losses[line["step"]] = float("nan") if line["loss"] is None else line["loss"]
    assert sorted(losses) == list(range(1, len(losses) + 1)), sorted(losses)
    return [losses[step] for step in sorted(losses)]


# Some weights have a gradient of 0 but for rounding, such as the bias of an attention's keys, and begin with 0.
LEAST_WEIGHT = 1e-3


def apart(mine, theirs):
    """The greatest difference relative to the greatest weight of a tensor; NaN if a weight is NaN."""
    assert mine.keys() == theirs.keys()
    each = [numpy.abs(mine[name] - theirs[name]).max() / max(numpy.abs(theirs[name]).max(), LEAST_WEIGHT) for name in mine]
    return float(numpy.max(each))


def same_bits(found, expected):
    """Two trainings are equal bit for bit."""
    difference = apart(found.weights, expected.weights)
    assert difference == 0 and found.losses == expected.losses, f"other bits: weights differ by {difference:.1e}"
    return "equal bit for bit"


def losses_apart(mine, theirs):
    """The greatest relative difference of the losses of a step; NaN if a loss is NaN."""
    mine, theirs = numpy.array(mine), numpy.array(theirs)
    return float(numpy.max(numpy.abs(mine - theirs) / numpy.abs(theirs)))
