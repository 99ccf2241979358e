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
# AdamW enlarges rounding where a gradient is almost 0. How much depends on the weights at the
# beginning, and so on the version of transformers: it is 1.2e-12 with 5.5.0.
ROUNDING_OF_ADAMW = 1e-11

# A shell that runs the tests in the background makes them ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def starter():
    """Starts scripts in processes that have already imported PyTorch and transformers."""
    from starter import Starter
    from world import World

    # transformers calls the garbage collector in each training.
    gc.freeze()
    World.starter = Starter("accelerate", "transformers", "transformers.trainer", "transformers.models.gpt2.modeling_gpt2", "trl.trainer.sft_trainer")
    yield World.starter
    World.starter.close()


@pytest.fixture
def job(tmp_path):
    """A job that runs a script with some features: ``job("own_loop.py", "adamw")``."""
    from world import World

    return lambda script, *uses, **options: World(tmp_path, HERE / "scripts" / script, tmp_path / "out", *uses, **options)


@pytest.fixture
def fine_tuning(job):
    """A job that runs scripts/fine_tune.py with some features: ``fine_tuning("adamw")``."""
    return lambda *uses, **options: job("fine_tune.py", *uses, **options)


@pytest.fixture(scope="session")
def plain_of(starter, tmp_path_factory):
    """The result of a script with the classes of the libraries themselves, in one process."""
    known = {}

    def result(script, *uses):
        if (script, uses) not in known:
            directory = tmp_path_factory.mktemp("plain")
            arguments = [HERE / "scripts" / script, directory / "out", "plain", *uses]
            process = starter.start(arguments, environment(), directory / "log")
            assert process.wait(240) == 0, (directory / "log").read_text()
            known[script, uses] = Result(directory / "out")
        return known[script, uses]

    return result


@pytest.fixture
def plain(plain_of):
    """The result of scripts/fine_tune.py with the Trainer of transformers, in one process."""
    return lambda *uses: plain_of("fine_tune.py", *uses)


@pytest.fixture
def ended_loops(monkeypatch):
    """Ends the memberships of scripts with accelerate after a test: elsewhere they end with their
    process."""
    import accelerate
    from roundhouse.hf.starting import Membership

    begun = []
    accelerate.state.AcceleratorState._reset_state()
    monkeypatch.setattr("roundhouse.hf.internals.accelerator.Membership", lambda *args: begun.append(Membership(*args)) or begun[-1])
    yield
    for one in begun:
        one.fail(RuntimeError("the test is over"))


def environment():
    """The environment of a process that no agent has started."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


class Result:
    """What the ranks of a script have written."""

    def __init__(self, directory):
        import torch

        self.weights = torch.load(directory / "weights.pt")
        self.ranks = {int(file.stem.split("-")[1]): json.loads(file.read_text()) for file in directory.glob("rank-*.json")}

    def logged(self, name, rank=0):
        """The values of an entry of the log, by step."""
        pairs = [(entry["step"], entry[name]) for entry in self.ranks[rank]["log"] if name in entry]
        assert len(dict(pairs)) == len(pairs), f"a step was logged twice: {pairs}"
        return dict(pairs)


def difference(left, right):
    """The largest difference of a tensor, relative to its largest weight."""
    pairs = [(left.weights[name], right.weights[name]) for name in left.weights]
    return max(float((one - other).abs().max() / one.abs().max()) for one, other in pairs)
