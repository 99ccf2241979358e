"""Where the package is: as it was installed, or staged by ``make test``."""

import pathlib
import signal
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

# A shell that runs the tests in the background has them ignore Ctrl-C, and so would the processes that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def starter():
    """Starts scripts in processes that have imported PyTorch already."""
    from starter import Starter
    from world import World

    World.starter = Starter()
    yield World.starter
    World.starter.close()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """The weights of the training of scripts/train.py by one process, after so many steps."""
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


def load(path):
    from safetensors.torch import load_file

    return load_file(path)


def difference(left, right):
    """The largest difference of two states, relative to the largest weight."""
    largest = max(float(tensor.abs().max()) for tensor in left.values())
    return max(float((left[name] - right[name]).abs().max()) for name in left) / largest
