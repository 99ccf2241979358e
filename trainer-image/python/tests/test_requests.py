"""Workers that are asked to leave, interrupted, or join twice."""

import signal
import time

import pytest
from conftest import STEPS
from world import World, until


def test_process_joins_a_job_once(tmp_path):
    with World(tmp_path, "train.py", 5, tmp_path / "weights", variables={"JOIN_AGAIN": "1"}) as world:
        workers = world.begin(1)
        world.ends(workers, 64)
        assert "AlreadyJoined: rh.join was called twice" in workers[0].log.read_text()


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        # A request to leave first waits for a boundary, and then ends the wait for the peer.
        (signal.SIGTERM, 143, "no checkpoint holds its state"),
        # Ctrl-C raises an exception in the script, also while it waits for its peer.
        (signal.SIGINT, 128 + signal.SIGINT, None),
    ],
)
def test_worker_with_a_silent_peer_ends_on_request(tmp_path, number, code, words):
    variables = {"ROUNDHOUSE_TERMINATION_GRACE_SECONDS": "6"}
    with World(tmp_path, "train.py", 100_000, tmp_path / "weights", variables=variables) as world:
        workers = world.begin(2)
        world.reach(workers, 5)
        workers[1].kill(signal.SIGSTOP)

        def waits():
            before = world.step(workers[0])
            time.sleep(1)
            return world.step(workers[0]) == before

        until("rank 0 waits for its peer", waits)
        workers[0].kill(number)
        world.ends([workers[0]], code)
        if words:
            assert words in workers[0].words()["message"]
        else:
            assert "KeyboardInterrupt" in workers[0].log.read_text()


def test_ctrl_c_ends_one_worker_and_its_peer_continues(tmp_path):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights") as world:
        world.slow(200)
        workers = world.begin(2)
        world.reach(workers, 5)
        workers[1].kill(signal.SIGINT)
        world.ends([workers[1]], 128 + signal.SIGINT)
        assert "KeyboardInterrupt" in workers[1].log.read_text()
        world.slow(0)
        world.form([workers[0]])
        world.ends([workers[0]])
