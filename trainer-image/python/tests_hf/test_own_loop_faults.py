"""Workers of a script with accelerate that are killed, stopped or added: no step is lost, and the
script counts each once."""

import signal

import pytest
from conftest import Result
from libraries import ROUNDING, ROUNDING_OF_ADAMW, difference
from world import until

STEPS = list(range(1, 19))


@pytest.fixture
def training(job):
    return lambda *uses, **options: job("own_loop.py", *uses, **options)


@pytest.fixture
def plain(plain_of):
    return lambda *uses: plain_of("own_loop.py", *uses)


def check(result, wanted, *names, rounding=ROUNDING):
    assert difference(wanted, result) <= rounding
    for name in ("loss", "learning_rate", *names):
        assert result.logged(name) == pytest.approx(wanted.logged(name), rel=1e-6), name
    assert result.ranks[0]["last"] == STEPS[-1] and result.ranks[0]["steps"] == STEPS


NAMES = {"clip": ["grad_norm"], "evaluate": ["eval_loss", "accuracy"], "epochs": ["eval_loss", "accuracy"]}


@pytest.mark.parametrize("uses", ["sgd", "adamw clip evaluate", "sgd own"])
def test_two_workers_equal_one_plain_accelerator(training, plain, uses):
    with training(*uses.split()) as world:
        world.ends(world.begin(2))
    result = Result(world.dir / "out")
    names = [name for use in uses.split() for name in NAMES.get(use, [])]
    check(result, plain(*uses.split()), *names, rounding=ROUNDING_OF_ADAMW if "adamw" in uses else ROUNDING)
    assert result.ranks[1]["steps"] == STEPS


KILLS = [("sgd", rank, point) for rank in (0, 1) for point in ("Forward", "Backward", "Agree", "Update", "Commit")]
KILLS += [("adamw clip evaluate", 1, point) for point in ("Backward", "Agree", "Commit")]


@pytest.mark.parametrize(("uses", "rank", "point"), KILLS)
def test_killed_worker_and_newcomer_lose_no_step(training, plain, uses, rank, point):
    uses = uses.split()
    with training(*uses) as world:
        world.replace_killed(rank, ROUNDHOUSE_FAULT=f"{rank}:5:{point}")
    result = Result(world.dir / "out")
    check(result, plain(*uses), rounding=ROUNDING_OF_ADAMW if "adamw" in uses else ROUNDING)
    # The newcomer counts all steps from its first one on.
    seen = result.ranks[1]["steps"]
    assert len(seen) in (13, 14) and seen == STEPS[-len(seen) :]


@pytest.mark.parametrize("point", ["Agree", "Update"])
def test_workers_that_stay_count_each_step(training, plain, point):
    with training("adamw", "clip", "evaluate") as world:
        workers = world.begin(3, fault=f"0:4:{point}")
        until("the worker is killed", workers[0].is_gone)
        world.form(workers[1:])
        world.ends(workers[1:])
    result = Result(world.dir / "out")
    check(result, plain("adamw", "clip", "evaluate"), rounding=ROUNDING_OF_ADAMW)
    assert result.ranks[1]["steps"] == STEPS


@pytest.mark.parametrize("first", [0, 1])
def test_worker_that_was_stopped_counts_the_steps_it_missed(training, plain, first):
    with training("sgd", "epochs") as world:
        world.slow(100)
        workers = world.begin(2)
        world.reach(workers, 5)
        workers[1].kill(signal.SIGSTOP)
        world.form([workers[0]], others_leave=False)
        # An epoch has 6 steps, and an evaluation follows.
        world.reach([workers[0]], 9)
        workers[1].kill(signal.SIGCONT)
        world.form([workers[first], workers[1 - first]])
        world.slow(0)
        world.ends(workers)
    result = Result(world.dir / "out")
    assert difference(plain("sgd", "epochs"), result) <= ROUNDING
    assert [result.ranks[rank]["steps"] for rank in (0, 1)] == [STEPS, STEPS]
    wanted = plain("sgd", "epochs").logged("eval_loss")
    assert result.logged("eval_loss", rank=first) == pytest.approx(wanted, rel=1e-6)


def test_worker_that_missed_steps_has_the_average_of_the_others(training, plain):
    with training("sgd", "average") as world:
        world.slow(150)
        workers = world.begin(2)
        world.reach(workers, 3)
        workers[1].kill(signal.SIGSTOP)
        world.form([workers[0]], others_leave=False)
        world.reach([workers[0]], 9)
        workers[1].kill(signal.SIGCONT)
        world.form(workers)
        world.slow(0)
        world.ends(workers)
    result, wanted = Result(world.dir / "out"), plain("sgd", "average")
    assert difference(wanted, result) <= ROUNDING
    averages = [result.ranks[rank]["average"] for rank in (0, 1)]
    assert averages == pytest.approx([wanted.ranks[0]["average"]] * 2, rel=ROUNDING, abs=0)


@pytest.mark.parametrize(("step", "killed"), [(6, 0), (12, 1), (18, 0)])
def test_worker_lost_in_an_evaluation_is_replaced(training, plain, step, killed):
    with training("sgd", "epochs") as world:
        world.replace_killed(killed, KILL_IN_EVALUATION=f"{killed}:{step}")
    result = Result(world.dir / "out")
    check(result, plain("sgd", "epochs"), "eval_loss", "accuracy")
    assert result.ranks[1]["steps"] == STEPS[step:]


def test_workers_leave_the_loop_early_together(training, plain):
    with training("sgd", "first") as world:
        world.ends(world.begin(3))
    result = Result(world.dir / "out")
    assert difference(plain("sgd", "first"), result) <= ROUNDING
    assert [result.ranks[rank]["last"] for rank in range(3)] == [12, 12, 12]


def test_job_from_a_checkpoint_continues_the_counters(training, plain):
    with training("sgd", checkpoints=True, every_steps=4) as world:
        world.restart_after(9)
    result = Result(world.dir / "out")
    assert difference(plain("sgd"), result) <= ROUNDING
    assert result.ranks[0]["steps"] == STEPS[-len(result.ranks[0]["steps"]) :] and result.ranks[0]["last"] == 18
