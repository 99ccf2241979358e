"""Workers of a Trainer that are killed, stopped or added: no step is lost, and each is logged
once."""

import signal

import pytest
from conftest import Result
from libraries import ROUNDING, difference

STEPS = list(range(1, 15))


def check(result, wanted, *names):
    assert difference(wanted, result) <= ROUNDING
    for name in ("loss", "grad_norm", "learning_rate", *names):
        assert result.logged(name) == pytest.approx(wanted.logged(name), rel=1e-6), name
    assert result.ranks[0]["last"] == STEPS[-1] and result.ranks[0]["steps"] == STEPS


@pytest.mark.parametrize("uses", [("sgd",), ("adamw", "clip", "evaluate")])
def test_two_workers_equal_one_plain_trainer(fine_tuning, plain, uses):
    with fine_tuning(*uses) as world:
        world.ends(world.begin(2))
    result = Result(world.dir / "out")
    check(result, plain(*uses), *(["eval_loss"] if "evaluate" in uses else []))
    assert result.ranks[1]["steps"] == STEPS


KILLS = [("sgd", rank, point) for rank in (0, 1) for point in ("Forward", "Backward", "Agree", "Update", "Commit")]
KILLS += [("adamw clip evaluate", 1, point) for point in ("Backward", "Agree", "Commit")]


@pytest.mark.parametrize(("uses", "rank", "point"), KILLS)
def test_killed_worker_and_newcomer_lose_no_step(fine_tuning, plain, uses, rank, point):
    uses = uses.split()
    with fine_tuning(*uses) as world:
        world.replace_killed(rank, ROUNDHOUSE_FAULT=f"{rank}:5:{point}")
    result = Result(world.dir / "out")
    check(result, plain(*uses))
    # The newcomer sees all steps from its first one on.
    seen = result.ranks[1]["steps"]
    assert len(seen) in (9, 10) and seen == STEPS[-len(seen) :]


def test_worker_that_was_stopped_for_an_epoch_joins_again(fine_tuning, plain):
    with fine_tuning("sgd", "evaluate") as world:
        world.slow(100)
        workers = world.begin(2)
        world.reach(workers, 5)
        workers[1].kill(signal.SIGSTOP)
        world.form([workers[0]], others_leave=False)
        # An epoch has 6 steps, and evaluations are after steps 4, 8 and 12.
        world.reach([workers[0]], 9)
        workers[1].kill(signal.SIGCONT)
        world.form(workers)
        world.slow(0)
        world.ends(workers)
    result = Result(world.dir / "out")
    check(result, plain("sgd", "evaluate"), "eval_loss")
    seen = result.ranks[1]["steps"]
    assert seen == sorted(set(seen)) and set(STEPS) - set(seen) and seen[-1] == STEPS[-1]
    known, logged = plain("sgd", "evaluate").logged("loss"), result.logged("loss", rank=1)
    # It may log the step in which it was stopped only if it has committed it.
    assert set(seen) - set(logged) <= {seen[5]}
    assert logged == pytest.approx({step: known[step] for step in logged}, rel=1e-6)
