"""Recipes that change the state after the commit of a step: the checkpoint of that step contains
the change."""

import json
import re
import signal

import pytest
from world import World, until

RECIPES = ["epoch", "manual", "average"]


def trained(directory, recipe, workers, **options):
    """The result of an undisturbed training."""
    directory.mkdir()
    with World(directory, "recipes.py", recipe, directory / "result", **options) as world:
        world.ends(world.begin(workers))
    return json.loads((directory / "result").read_text())


@pytest.mark.parametrize("recipe", RECIPES)
def test_checkpoint_contains_changes_after_the_commit(tmp_path, recipe):
    # Each checkpoint is of the last step of an epoch.
    with World(tmp_path, "recipes.py", recipe, tmp_path / "result", checkpoints=True, every_steps=4) as world:
        world.slow(100)
        died = world.start(0, DIES_AFTER="14")
        world.prepared([died])
        world.form([died])
        world.ends([died], code=9)
        world.slow(0)
        again = world.start(0)
        world.prepared([again])
        world.form([again], others_leave=False)
        world.ends([again])
        assert re.search("step (4|8|12) of generation 1", again.log.read_text()), "it continues from a checkpoint"
    assert json.loads((tmp_path / "result").read_text()) == trained(tmp_path / "undisturbed", recipe, 1)


@pytest.mark.parametrize("recipe", RECIPES)
def test_suspended_job_keeps_changes_after_the_commit(tmp_path, recipe):
    with World(tmp_path, "recipes.py", recipe, tmp_path / "result", checkpoints=True, every_steps=1000) as world:
        world.slow(100)
        workers = world.begin(2)
        world.reach(workers, 9)
        for worker in workers:
            worker.kill(signal.SIGTERM)
        world.ends(workers, code=143)
        assert until("a checkpoint", lambda: list((world.state / "checkpoints").glob("gen-*")))
        world.slow(0)
        again = world.begin(2)
        world.ends(again)
    assert json.loads((tmp_path / "result").read_text()) == trained(tmp_path / "undisturbed", recipe, 2)


@pytest.mark.parametrize("fault", ["0:9:Backward", "0:9:Update", "0:9:Commit", "1:9:Agree", "2:9:Commit"])
def test_average_of_weights_is_exact_after_a_kill(tmp_path, fault):
    rank = int(fault[0])
    with World(tmp_path, "recipes.py", "average", tmp_path / "result") as world:
        workers = world.begin(3, fault=fault)
        until("the rank is killed", workers[rank].is_gone)
        world.slow(50)
        others = [worker for worker in workers if worker is not workers[rank]]
        world.form(others)
        world.reach(others, 14)
        with world.steps_held(then=50):
            again = world.start(rank)
            world.prepared([again])
            world.form([again, *others])
        world.reach([again], 20)
        world.slow(0)
        world.ends([again, *others])
    found, wanted = json.loads((tmp_path / "result").read_text()), trained(tmp_path / "undisturbed", "average", 1)
    assert found["steps"] == wanted["steps"] == 48 and found["average"][0] == wanted["average"][0] == 48
    assert found["weights"] == pytest.approx(wanted["weights"], abs=1e-12)
    assert found["average"] == pytest.approx(wanted["average"], abs=1e-12)
    # The test would not see an average that is missing.
    assert found["average"][1:] != pytest.approx(wanted["weights"], abs=1e-3)
