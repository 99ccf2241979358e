"""The setting of all parts: programs, data and workers, and the results of a training run."""
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
    """The trainer with fault injection."""
    place: pathlib.Path
    here: machine.Machine
    at_once: int
    """The number of concurrent training runs where no time is measured."""
    deadline: float = float("inf")
    """No case starts after this `time.monotonic` in parts that may leave cases out."""
    rounds: int = 1
    """The number of measurements of each speed, in alternation with PyTorch's."""
    num_failed: int = 0
    num_left_out: int = 0
    note: typing.Callable = lambda *_: None
    """Called with each row of a part as soon as it is known."""

    def __post_init__(self):
        self.data = self.place / "data"
        ours.write_data(self.data)
        self.numbers = itertools.count()

    def world(self, config, nodes, here=None, data=None, extra=None, trainer=None):
        """Starts workers with one process each. `extra` has environment variables by worker, read
        when the worker starts."""
        here, extra = here or self.here, extra if extra is not None else {}
        directory = self.place / f"job-{next(self.numbers)}"
        return World(
            trainer or self.trainer, directory, data or self.data, config, nodes,
            lambda node: here.variables(node) | nccl_log(directory, node) | extra.get(node, {}),
        )

    def audit(self, world):
        command = [self.trainer, "audit", world.directory / "state"]
        found = subprocess.run(command, capture_output=True, text=True, env={"LD_LIBRARY_PATH": self.here.library_path})
        assert found.returncode == 0 and "proven" in found.stdout, found.stdout + found.stderr

    def is_small(self):
        return self.here.device == "cpu"

    def num_steps(self, name, few=4):
        """The number of steps for a model: `few` on a CPU, except for the small mlp."""
        return few if self.is_small() and name != "mlp" else STEPS

    def each(self, cases):
        """Runs cases: pairs of a name and a function that returns the result. A failed case does
        not stop the others."""

        def run(case):
            name, function = case
            if time.monotonic() > self.deadline:
                self.num_left_out += 1
                return name, "left out for lack of time"
            try:
                row = name, function()
            except Exception as error:
                self.failed(error)
                row = name, failure(error)
            self.note(*row)
            return row

        with concurrent.futures.ThreadPoolExecutor(self.at_once) as pool:
            return list(pool.map(run, cases))

    def failed(self, error):
        self.num_failed += 1
        traceback.print_exception(error, file=sys.stderr)


def failure(error):
    """The cell of a failed case: the first line of its error."""
    lines = str(error).strip().splitlines()
    return f"FAILED: {lines[0] if lines else type(error).__name__}".replace("|", "\\|")


def nccl_log(directory, node):
    """Makes NCCL log its connections to the file that the trainer reads, as the agent does."""
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET",
        "NCCL_DEBUG_FILE": str(directory / f"run-{node}" / "rank-0.nccl.log"),
    }


def config_of(name, steps=STEPS, **extra):
    config = ours.CONFIGURATIONS[name] | {"steps": steps, "seed": 7}
    if name == "resnet18":
        # Ghost batches are fixed groups of samples, so the number of workers does not change the
        # statistics.
        config["model"] = config["model"] | {"ghostBatch": 8}
    return config | extra


@dataclasses.dataclass
class Trained:
    weights: dict
    losses: list
    """The losses of all steps."""
    metrics: dict
    """The metrics of worker 0 at the end, without those that have labels."""


def trained(setting, config, nodes, here=None, extra=None, trainer=None):
    """Trains to the end in one generation, and returns the results."""
    with setting.world(config, nodes, here, extra=extra, trainer=trainer) as world:
        workers = range(nodes)
        world.prepared(workers)
        world.issue(1, workers)
        world.complete(workers, 300)
        return results(setting, world)


def results(setting, world):
    """Audits the ledger of a completed training run, and returns the run's results."""
    setting.audit(world)
    return Trained(weights_of(world), losses_of(world), world.metrics(0))


def weights_of(world):
    """The tensors of the safetensors file that rank 0 has written."""
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
    """The loss of each step, from the ledger; NaN if it is not finite. If two generations have a
    step, the later one counts."""
    losses = {}
    for path in sorted((world.directory / "state" / "ledger").iterdir()):
        for line in map(json.loads, path.read_text().splitlines()):
            if "loss" in line:
                losses[line["step"]] = float("nan") if line["loss"] is None else line["loss"]
    assert sorted(losses) == list(range(1, len(losses) + 1)), sorted(losses)
    return [losses[step] for step in sorted(losses)]


# Some weights start at 0 and have a gradient of 0 except for rounding, such as the bias of an
# attention's keys.
MIN_WEIGHT = 1e-3


def apart(mine, theirs):
    """The largest difference of any weight, as a fraction of the largest weight of its tensor; NaN
    if a weight is NaN."""
    assert mine.keys() == theirs.keys()
    each = [numpy.abs(mine[name] - theirs[name]).max() / max(numpy.abs(theirs[name]).max(), MIN_WEIGHT) for name in mine]
    return float(numpy.max(each))


def same_bits(found, expected):
    """Checks that two training runs have equal weights and losses, bit for bit."""
    difference = apart(found.weights, expected.weights)
    assert difference == 0 and found.losses == expected.losses, f"not equal bit for bit: weights differ by {difference:.1e}"
    return "equal bit for bit"


def losses_apart(mine, theirs):
    """The largest relative difference of the losses of a step; NaN if a loss is NaN."""
    mine, theirs = numpy.array(mine), numpy.array(theirs)
    return float(numpy.max(numpy.abs(mine - theirs) / numpy.abs(theirs)))
