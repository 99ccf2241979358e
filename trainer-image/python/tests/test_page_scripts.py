"""The scripts of docs/python.md with two workers, one of which is killed, and a new one: the
weights are those of an undisturbed process."""

import re

import numpy
import pytest
from conftest import difference, load
from page import script_of_page
from world import World, until

# Tolerance for sums in another order, in 64 bits.
ROUNDING = 1e-12
SMALL = {
    "small GPT": {"STEPS": 24, "BATCH": 12, "MICRO_BATCH": 4, "EVERY": 8, "VOCABULARY": 32, "BLOCK": 16, "WIDTH": 64, "LAYERS": 1},
    "classifier": {"EPOCHS": 12, "BATCH": 16, "CLASSES": 2},
}
RESULTS = {"small GPT": ["weights.safetensors", "best.safetensors"], "classifier": ["average.safetensors"]}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Tokens that repeat, and images whose classes have stripes or none."""
    directory = tmp_path_factory.mktemp("data")
    random = numpy.random.default_rng(1)
    for name, length in (("train", 600), ("val", 100)):
        (numpy.arange(length) % 7 + random.integers(2, size=length)).astype(numpy.uint16).tofile(directory / f"{name}.bin")
    for name, number in (("train", 90), ("test", 30)):
        labels = random.integers(2, size=number)
        images = random.integers(100, size=(number, 3, 8, 8))
        images[:, :, ::2] += 150 * labels[:, None, None, None]
        numpy.savez(directory / f"{name}.npz", x=images.astype(numpy.uint8), y=labels)
    return directory


def begin(directory, words, data):
    """A job of the script, whose results are beside its checkpoints."""
    directory.mkdir()
    script = script_of_page(directory, words, double=True, **SMALL[words])
    return World(directory, script, variables={"DATA": str(data)}, checkpoints=True, every_steps=1000)


def lines(workers, pattern):
    """The numbers in the output of the workers, by step."""
    said = "".join(worker.log.read_text() for worker in workers)
    return {int(step): float(value) for step, value in re.findall(pattern, said, re.MULTILINE)}


@pytest.mark.parametrize("words", SMALL)
def test_script_of_the_page_is_exact_with_a_kill(tmp_path, data, words):
    with begin(tmp_path / "alone", words, data) as world:
        alone = world.begin(1)
        world.ends(alone)
        wanted = [load(world.state / name) for name in RESULTS[words]]
    with begin(tmp_path / "two", words, data) as world:
        workers = world.begin(2, fault="0:9:Backward")
        until("rank 0 is killed", workers[0].is_gone)
        world.slow(100)
        world.form(workers[1:])
        world.reach(workers[1:], 12)
        with world.steps_held(then=100):
            again = world.start(0)
            world.prepared([again])
            world.form([workers[1], again])
        world.reach([again], 16)
        world.slow(0)
        world.ends([workers[1], again])
        found = [load(world.state / name) for name in RESULTS[words]]
    for one, other in zip(found, wanted):
        assert difference(other, one) <= ROUNDING
    evaluations = r"^step (\d+): loss ([\d.]+)(?: on val.bin|, [\d.]+% of the test images)"
    # Rank 0 prints each evaluation.
    assert lines(workers + [again], evaluations) == lines(alone, evaluations) and len(lines(alone, evaluations)) >= 3
    first, *_, last = lines(alone, evaluations).values()
    assert last < first
