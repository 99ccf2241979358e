"""Fixtures. The processes of a job are those of the package's own tests, in ``tests``."""

import gc
import pathlib

import libraries
import pytest

HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def starter():
    """Starts scripts in processes that have already imported PyTorch and transformers."""
    from starter import starts_scripts

    # transformers calls the garbage collector in each training.
    gc.freeze()
    yield from starts_scripts("accelerate", "transformers", "transformers.trainer", "transformers.models.gpt2.modeling_gpt2", "trl.trainer.sft_trainer")


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
    result = libraries.plain_results(starter, tmp_path_factory, Result)
    return lambda script, *uses: result(HERE / "scripts" / script, *uses)


@pytest.fixture
def plain(plain_of):
    """The result of scripts/fine_tune.py with the Trainer of transformers, in one process."""
    return lambda *uses: plain_of("fine_tune.py", *uses)


@pytest.fixture
def ended_loops(monkeypatch):
    """Ends the memberships of scripts with accelerate after a test: elsewhere they end with their
    process."""
    import accelerate
    from roundhouse.integration.membership import Membership

    begun = []
    accelerate.state.AcceleratorState._reset_state()
    monkeypatch.setattr("roundhouse.hf.internals.accelerator.Membership", lambda *args: begun.append(Membership(*args)) or begun[-1])
    yield
    for one in begun:
        one.fail(RuntimeError("the test is over"))


class Result(libraries.Result):
    """What the ranks of a script with transformers or accelerate have written."""

    def log(self, rank):
        return [(entries["step"], entries) for entries in self.ranks[rank]["log"]]
