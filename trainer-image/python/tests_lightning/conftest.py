"""Fixtures. The processes of a job are those of the package's own tests, in ``tests``."""

import gc
import pathlib

import libraries
import pytest

HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def starter():
    """Starts scripts in processes that have already imported PyTorch and Lightning."""
    from starter import starts_scripts

    # The garbage collector would touch, and so copy, all memory of the libraries.
    gc.freeze()
    yield from starts_scripts("lightning", "lightning.pytorch", "torchmetrics")


@pytest.fixture
def job(tmp_path):
    """A job that runs a script with some features: ``job("fit.py", "adamw")``."""
    from world import World

    return lambda script, *uses, **options: World(tmp_path, HERE / "scripts" / script, tmp_path / "out", *uses, **options)


@pytest.fixture
def training(job):
    """A job that runs scripts/fit.py with some features: ``training("adamw")``."""
    return lambda *uses, **options: job("fit.py", *uses, **options)


@pytest.fixture
def looping(job):
    """A job that runs scripts/loop.py with some features."""
    return lambda *uses, **options: job("loop.py", *uses, **options)


@pytest.fixture(scope="session")
def plain_of(starter, tmp_path_factory):
    """The result of a script with the classes of Lightning itself, in one process."""
    result = libraries.plain_results(starter, tmp_path_factory, Result)
    return lambda script, *uses: result(HERE / "scripts" / script, *uses)


@pytest.fixture
def plain(plain_of):
    """The result of scripts/fit.py with a plain Trainer."""
    return lambda *uses: plain_of("fit.py", *uses)


@pytest.fixture
def plain_loop(plain_of):
    """The result of scripts/loop.py with a plain Fabric."""
    return lambda *uses: plain_of("loop.py", *uses)


class Result(libraries.Result):
    """What the ranks of a script with Lightning have written."""

    def log(self, rank):
        return self.ranks[rank]["log"]

    def steps(self, rank=0):
        """The steps that the callbacks of a rank have seen."""
        return [step for step, _, _ in self.ranks[rank]["steps"]]


def close(found, known):
    """Whether two lists of steps and values are the same up to rounding."""
    values = [[value for _, value in pairs] for pairs in (found, known)]
    return [step for step, _ in found] == [step for step, _ in known] and values[0] == pytest.approx(values[1], rel=1e-9)
