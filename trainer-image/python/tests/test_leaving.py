"""Processes that leave while a process group is incomplete: the last one saves the state before it
ends, and a connection to a lost rank ends before the process."""

import signal

import pytest
from conftest import difference, load
from world import HERE, World, until

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


DIALS = f"""
import pathlib, sys, time
sys.path.insert(0, {str(HERE)!r})
import torch.distributed as dist
from small_script import Parts, train

HERE, store = pathlib.Path(__file__).parent, dist.TCPStore


def late(*args, is_master, **options):
    if is_master:
        return store(*args, is_master=True, **options)
    (HERE / "dials").touch()
    while not (HERE / "over").exists():
        time.sleep(0.01)
    if not (HERE / "ended").exists():
        (HERE / "returned").touch()
    raise RuntimeError("no answer")


dist.TCPStore = late
parts = Parts()
train(parts, lambda job, loss: job.commit(loss, parts.both))
(HERE / "ended").touch()
"""


def test_connection_to_a_lost_rank_ends_before_the_process(tmp_path):
    # A thread that returns from PyTorch while Python ends would abort the process.
    file = tmp_path / "script.py"
    file.write_text(DIALS)
    with World(tmp_path, file) as world:
        workers = [world.start(0), world.start(1)]
        world.prepared(workers)
        workers[0].kill()
        until("worker 0 is gone", workers[0].is_gone)
        world.form(workers)
        until("worker 1 connects", (tmp_path / "dials").exists)
        world.form(workers[1:])
        until("worker 1 has trained", lambda: workers[1].status().get("phase") == "Done")
        (tmp_path / "over").touch()
        world.ends(workers[1:])
    assert (tmp_path / "returned").exists()
