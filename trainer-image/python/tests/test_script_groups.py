"""Collectives of the script: its own groups, ``job.sum``, and groups of earlier generations."""

import pytest
from conftest import STEPS
from world import World, until


def test_group_of_the_script_fails_with_a_killed_rank(tmp_path):
    # PyTorch's own timeout for such a group is 30 minutes.
    with World(tmp_path, "parts.py", STEPS, tmp_path / "weights") as world:
        workers = world.begin(3, fault="1:31:Forward")
        until("the rank is killed", workers[1].is_gone)
        others = [workers[0], workers[2]]
        world.form(others)
        world.ends(others)


def test_rank_killed_while_creating_a_group_blocks_no_rank(tmp_path):
    # Ranks wait at the store: for 2 minutes in the group, and for 30 minutes outside of it.
    with World(tmp_path, "parts.py", STEPS, tmp_path / "weights", variables={"DIES_AT_FIRST": "1:2"}) as world:
        world.slow(200)
        workers = world.begin(3)
        world.reach(workers, 5)
        world.form(workers)
        until("the rank is killed", workers[1].is_gone)
        others = [workers[0], workers[2]]
        world.form(others)
        world.reach(others, 10)
        assert all("leaving generation" in worker.log.read_text() for worker in others)
        world.slow(0)
        world.ends(others)


@pytest.mark.parametrize(
    ("how", "dies_at"),
    [("continue", "1:31"), ("with batch", "1:31"), ("in a step", "1:31"), ("in a callback", "1:0")],
)
def test_rank_killed_during_job_sum_costs_no_process(tmp_path, how, dies_at):
    variables = {"HOW": how, "DIES_AT": dies_at}
    with World(tmp_path, "sums.py", STEPS, tmp_path / "weights", variables=variables) as world:
        workers = world.begin(3)
        until("the rank is killed", workers[1].is_gone)
        others = [workers[0], workers[2]]
        world.form(others)
        world.ends(others)


def test_job_sum_works_after_a_failed_commit(tmp_path):
    with World(tmp_path, "sums.py", STEPS, tmp_path / "weights", variables={"HOW": "continue"}) as world:
        workers = world.begin(3, fault="1:31:Agree")
        until("the rank is killed", workers[1].is_gone)
        others = [workers[0], workers[2]]
        world.form(others)
        world.ends(others)


# In a step, the sum of the losses of all samples is a finite number with the first factor alone.
@pytest.mark.parametrize(("factor", "code"), [("1e306", 0), ("2e307", 64)])
def test_losses_of_any_size_are_summed_or_diverge(tmp_path, factor, code):
    with World(tmp_path, "sums.py", 5, tmp_path / "weights", variables={"FACTOR": factor}) as world:
        workers = world.begin(2)
        world.ends(workers, code)
        assert code == 0 or "step 1: loss inf, gradient norm" in workers[0].words()["message"]


@pytest.mark.parametrize("what", ["mesh", "part", "world"])
def test_group_of_an_earlier_generation_ends_with_advice(tmp_path, what):
    with World(tmp_path, "kept.py", what, "caught") as world:
        world.slow(50)
        workers = world.begin(3)
        world.reach(workers, 5)
        world.slow(0)
        # The same ranks again: PyTorch would find a group by the old name, and a kept group would
        # still sum.
        world.form(workers)
        first = until("a worker ends", lambda: next((worker for worker in workers if worker.is_gone()), None))
        world.ends([first], 64)
        words = "uses a process group or a DeviceMesh of an earlier generation"
        assert words in first.words()["message"] and "job.on_generation(callback)" in first.words()["message"]


@pytest.mark.parametrize(("what", "code"), [("dropped caught", 0), ("dropped-part caught", 0), ("dropped bare", 75)])
def test_collective_after_a_dropped_commit_does_not_fail(tmp_path, what, code):
    with World(tmp_path, "kept.py", *what.split()) as world:
        workers = world.begin(3, fault="2:31:Agree")
        until("the rank is killed", workers[2].is_gone)
        if code == 0:
            world.form(workers[:2])
        world.ends(workers[:2], code)
        if code != 0:
            assert "called a collective after that, such as after a job.commit that returned False" in workers[0].words()["message"]
