"""Processes that are asked to leave while their process group is incomplete: the last one saves the
state before it ends."""

import signal

import pytest
from conftest import difference, load
from world import World, until

STEPS = 120
# Tolerance for sums in another order, over twice as many steps as in the other tests.
ROUNDING = 1e-5


@pytest.mark.parametrize("stranded", [True, False], ids=["waits", "at-once"])
def test_worker_that_leaves_alone_saves_the_state(tmp_path, undisturbed, stranded):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights", checkpoints=True, every_steps=1_000_000) as world:
        world.slow(20)
        workers = world.begin(2)
        world.reach(workers, 20)
        if stranded:
            workers[1].kill()
            until("worker 0 waits", lambda: workers[0].status().get("phase") == "Stranded")
            workers[0].kill(signal.SIGTERM)
        else:
            workers[0].kill(signal.SIGTERM)
            workers[1].kill()
        world.ends(workers[:1], 143)
        words = workers[0].words()
        assert "a checkpoint holds its state" in words["message"]
        saved = sorted(path.name for path in (world.state / "checkpoints").iterdir())
        assert saved[-1].endswith(f"-step-{words['step']:012}"), (saved, words)
        assert workers[0].status()["progress"]["checkpointStep"] == words["step"]

        world.slow(0)
        resumed = [world.start(0), world.start(1)]
        world.prepared(resumed)
        world.form(resumed)
        world.ends(resumed)
        said = "".join(worker.log.read_text() for worker in resumed)
        assert f"step {words['step']} of generation" in said
    assert difference(undisturbed(STEPS), load(tmp_path / "weights")) <= ROUNDING
