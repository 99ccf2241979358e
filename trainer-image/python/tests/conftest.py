"""Fixtures. The package is installed, or staged by ``make test``."""

import multiprocessing

import pytest
import torch
from roundhouse.versions import OLDEST_WITH_REPLICAS

# An older PyTorch has no replicas; test_versions.py tests that they are refused.
OF_REPLICAS = ["test_replica*.py", "test_pipelines.py", "test_exchanges.py", "test_slices_of_replicas.py"]
collect_ignore_glob = [] if torch.__version__ >= OLDEST_WITH_REPLICAS else OF_REPLICAS

# Steps of scripts/train.py in tests of several ranks.
STEPS = 60
# Tolerance for sums in another order.
ROUNDING = 1e-6


@pytest.fixture(scope="session", autouse=True)
def starter():
    """Starts scripts in processes that have already imported PyTorch."""
    from starter import starts_scripts

    yield from starts_scripts()


@pytest.fixture(autouse=True)
def leaves_no_process():
    """Fails a test whose data loader still has processes after the test."""
    yield
    assert not multiprocessing.active_children()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """The weights of scripts/train.py after a number of steps of one process."""
    from world import World

    known = {}

    def weights(steps):
        if steps not in known:
            directory = tmp_path_factory.mktemp("undisturbed")
            with World(directory, "train.py", steps, directory / "weights") as world:
                workers = world.begin(1)
                world.ends(workers)
            known[steps] = load(directory / "weights")
        return known[steps]

    return weights


@pytest.fixture
def parts():
    """The objects of a small script."""
    from small_script import Parts

    torch.manual_seed(1)
    return Parts()


def load(path):
    from safetensors.torch import load_file

    return load_file(path)


def difference(left, right):
    """The largest difference between two states, relative to the largest weight."""
    largest = max(float(tensor.abs().max()) for tensor in left.values())
    return max(float((left[name] - right[name]).abs().max()) for name in left) / largest
