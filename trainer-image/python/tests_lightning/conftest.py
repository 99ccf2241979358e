"""Fixtures. The processes of a job are those of the package's own tests, in ``tests``."""

import gc
import json
import os
import pathlib
import signal
import sys

import pytest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

# Tolerance for sums in another order, in 64 bits.
ROUNDING = 1e-12

# A shell that runs the tests in the background makes them ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def starter():
    """Starts scripts in processes that have already imported PyTorch and Lightning."""
    from starter import Starter
    from world import World

    # The garbage collector would touch, and so copy, all memory of the libraries.
    gc.freeze()
    World.starter = Starter("lightning", "lightning.pytorch", "torchmetrics")
    yield World.starter
    World.starter.close()


def jobs_of(script, directory):
    """A function that starts a job which runs a script with some features."""
    from world import World

    return lambda *uses, **options: World(directory, HERE / "scripts" / script, directory / "out", *uses, **options)


def results_of(script, starter, directories):
    """A function that runs a script without a job, in one process, and returns its result."""
    known = {}

    def result(*uses):
        if uses not in known:
            directory = directories.mktemp("plain")
            process = starter.start(
                [HERE / "scripts" / script, directory / "out", "plain", *uses], environment(), directory / "log"
            )
            assert process.wait(240) == 0, (directory / "log").read_text()
            known[uses] = Result(directory / "out")
        return known[uses]

    return result


@pytest.fixture
def training(tmp_path):
    """A job that runs scripts/fit.py with some features: ``training("adamw")``."""
    return jobs_of("fit.py", tmp_path)


@pytest.fixture(scope="session")
def plain(starter, tmp_path_factory):
    """The result of scripts/fit.py with a plain Trainer."""
    return results_of("fit.py", starter, tmp_path_factory)


@pytest.fixture
def looping(tmp_path):
    """A job that runs scripts/loop.py with some features."""
    return jobs_of("loop.py", tmp_path)


@pytest.fixture(scope="session")
def plain_loop(starter, tmp_path_factory):
    """The result of scripts/loop.py with a plain Fabric."""
    return results_of("loop.py", starter, tmp_path_factory)


def environment():
    """The environment of a process that no agent has started."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


class Result:
    """What the ranks of scripts/fit.py have written."""

    def __init__(self, directory):
        import torch

        self.weights = torch.load(directory / "weights.pt")
        self.ranks = {int(file.stem.split("-")[1]): json.loads(file.read_text()) for file in directory.glob("rank-*.json")}

    def logged(self, name, rank=0):
        """The values of an entry of the log, by step."""
        pairs = [(step, entry[name]) for step, entry in self.ranks[rank]["log"] if name in entry]
        assert len(dict(pairs)) == len(pairs), f"a step was logged twice: {pairs}"
        return dict(pairs)

    def steps(self, rank=0):
        """The steps that the callbacks of a rank have seen."""
        return [step for step, _, _ in self.ranks[rank]["steps"]]


def difference(left, right):
    """The largest difference of a tensor, relative to its largest weight."""
    pairs = [(left.weights[name], right.weights[name]) for name in left.weights]
    return max(float((one - other).abs().max() / one.abs().max()) for one, other in pairs)


def close(found, known):
    """Whether two lists of steps and values are the same up to rounding."""
    values = [[value for _, value in pairs] for pairs in (found, known)]
    return [step for step, _ in found] == [step for step, _ in known] and values[0] == pytest.approx(values[1], rel=1e-9)
