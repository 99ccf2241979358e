"""Ranks that are killed, stopped, added or slow: the others lose no step."""

import signal
import time

import pytest
from conftest import ROUNDING, STEPS, difference, load
from world import World, until


@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_ranks_trains_to_the_same_weights(tmp_path, undisturbed, workers):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights") as world:
        world.ends(world.begin(workers))
    assert difference(undisturbed(STEPS), load(tmp_path / "weights")) <= ROUNDING


@pytest.mark.parametrize("point", ["Forward", "Backward", "Agree", "Update", "Commit"])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_killed_rank_costs_no_step(tmp_path, undisturbed, rank, point):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights") as world:
        workers = world.begin(3, fault=f"{rank}:31:{point}")
        until("the rank is killed", workers[rank].is_gone)
        others = [worker for worker in workers if worker is not workers[rank]]
        world.form(others)
        world.ends(others)
        said = "".join(worker.log.read_text() for worker in others)
    assert difference(undisturbed(STEPS), load(tmp_path / "weights")) <= ROUNDING
    assert "step 60 of 60" in said or "training is complete" in said


@pytest.mark.parametrize("rank", [0, 1])
def test_last_of_two_ranks_continues(tmp_path, undisturbed, rank):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights") as world:
        workers = world.begin(2, fault=f"{rank}:31:Backward")
        until("the rank is killed", workers[rank].is_gone)
        world.form([workers[1 - rank]])
        world.ends([workers[1 - rank]])
    assert difference(undisturbed(STEPS), load(tmp_path / "weights")) <= ROUNDING


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("delay", [0.005, 0.03])
def test_rank_killed_while_a_large_state_moves_blocks_no_rank(tmp_path, rank, delay):
    # The timeout of a collective is 120 s in this test.
    variables = {"LARGE": "128"}
    with World(tmp_path, "train.py", 100_000, tmp_path / "weights", variables=variables) as world:
        workers = [world.start(index) for index in range(3)]
        world.prepared(workers)
        world.form(workers[:2], others_leave=False)
        world.reach(workers[:2], 2)
        world.form(workers)
        until("the state moves", lambda: workers[2].status().get("volumeMoves", 0) > 0)
        time.sleep(delay)
        workers[rank].kill()
        others = [worker for worker in workers if worker is not workers[rank]]
        until("the others are free", lambda: all(worker.status().get("phase") in ("Stranded", "Training") for worker in others), 40)


def test_rank_cut_short_after_a_commit_gets_the_complete_state(tmp_path):
    with World(tmp_path, "cut.py", STEPS, tmp_path / "bodies", variables={"CUT_AT": "31"}) as world:
        workers = world.begin(3)
        until("a rank is killed", workers[2].is_gone)
        world.form(workers[:2])
        world.ends(workers[:2])
    assert [(tmp_path / f"bodies-{rank}").read_text() for rank in (0, 1)] == [str(STEPS)] * 2


def test_straggler_is_reported(tmp_path):
    own_pace = tmp_path / "own-pace"
    own_pace.write_text("60")
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights") as world:
        workers = [world.start(0), world.start(1, ROUNDHOUSE_FAULT_STEP_FILE=str(own_pace))]
        world.prepared(workers)
        world.form(workers)

        def straggler():
            progress = workers[0].status().get("progress") or {}
            return progress.get("straggler")

        assert until("the report of the straggler", straggler)["nodeRank"] == 1
        world.ends(workers)


def test_joining_workers_get_the_state_without_losing_steps(tmp_path, undisturbed):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights") as world:
        more = [world.start(1), world.start(2)]
        world.prepared(more)
        world.slow(200)
        first = world.begin(1)
        world.reach(first, 5)
        world.form(first + more)
        world.reach(more, 10)
        world.form([first[0], more[1]])
        world.ends([more[0]], 143)
        world.slow(0)
        world.ends([first[0], more[1]])
    assert difference(undisturbed(STEPS), load(tmp_path / "weights")) <= ROUNDING


def test_stopped_rank_is_left_behind_without_losing_steps(tmp_path, undisturbed):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights") as world:
        world.slow(200)
        workers = world.begin(3)
        world.reach(workers, 5)
        stopped = workers[1]
        stopped.kill(signal.SIGSTOP)
        others = [workers[0], workers[2]]
        world.form(others)
        world.reach(others, 10)
        stopped.kill(signal.SIGCONT)
        # The rank notices the end of its generation, and a generation without a place for it.
        world.ends([stopped], 143)
        world.slow(0)
        world.ends(others)
    assert difference(undisturbed(STEPS), load(tmp_path / "weights")) <= ROUNDING


def test_stopped_rank_joins_a_later_generation(tmp_path, undisturbed):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights") as world:
        world.slow(200)
        workers = world.begin(2)
        world.reach(workers, 5)
        workers[1].kill(signal.SIGSTOP)
        world.form([workers[0]], others_leave=False)
        world.reach([workers[0]], 10)
        workers[1].kill(signal.SIGCONT)
        world.form(workers)
        world.reach(workers, 15)
        world.slow(0)
        world.ends(workers)
    assert difference(undisturbed(STEPS), load(tmp_path / "weights")) <= ROUNDING


def test_killed_job_continues_from_its_checkpoint(tmp_path, undisturbed):
    with World(tmp_path, "train.py", STEPS, "weights", checkpoints=True, every_steps=10) as world:
        later = world.restart_after(25)
        assert "step 20 of generation 1" in later[0].log.read_text()
    assert difference(undisturbed(STEPS), load(world.state / "weights")) <= ROUNDING


@pytest.mark.parametrize("when", ["before", "within"])
def test_rank_that_works_alone_after_a_loss_is_not_stranded(tmp_path, when):
    """Otherwise each new generation would count as broken until the work is done."""
    with World(tmp_path, "works_alone.py", tmp_path, when) as world:
        workers = world.begin(2)
        until("rank 1 is killed", workers[1].is_gone)
        until("rank 0 works", (tmp_path / "works").exists)
        newcomer = world.start(2)
        world.prepared([newcomer])
        world.form([workers[0], newcomer])
        until("the newcomer waits", lambda: newcomer.status().get("phase") == "Forming")
        status = workers[0].status()
        assert (status["phase"], status["patienceSeconds"]) == ("Evaluating", 77), status
        (tmp_path / "go").touch()
        world.ends([workers[0], newcomer])


def test_rank_whose_work_ends_with_an_exception_is_stranded(tmp_path):
    with World(tmp_path, "works_alone.py", tmp_path, "raised") as world:
        workers = world.begin(2)
        until("rank 0 waits", lambda: workers[0].status().get("phase") == "Stranded")
        assert "patienceSeconds" not in workers[0].status()
        newcomer = world.start(2)
        world.prepared([newcomer])
        world.form([workers[0], newcomer])
        (tmp_path / "go").touch()
        world.ends([workers[0], newcomer])
