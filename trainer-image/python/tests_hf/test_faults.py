"""Workers of a Trainer that are killed, added or left behind: no step is lost, and none counts
twice."""

import pytest
from conftest import Result, difference
from world import until

STEPS = list(range(1, 15))
# Sums in another order, in 64 bits.
ROUNDING = 1e-12


def check(result, wanted, *names):
    assert difference(wanted, result) <= ROUNDING
    for name in ("loss", "grad_norm", "learning_rate", *names):
        assert result.logged(name) == pytest.approx(wanted.logged(name), rel=1e-6), name
    assert result.ranks[0]["global_step"] == STEPS[-1]


@pytest.mark.parametrize("uses", [("sgd",), ("adamw", "clip", "evaluate")])
def test_two_workers_equal_one_plain_trainer(fine_tuning, plain, uses):
    with fine_tuning(*uses) as world:
        workers = world.begin(2)
        world.ends(workers)
    result = Result(world.dir / "out")
    check(result, plain(*uses), *(["eval_loss"] if "evaluate" in uses else []))
    assert [result.ranks[rank]["steps"] for rank in (0, 1)] == [STEPS, STEPS]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("point", ["Forward", "Backward", "Agree", "Update", "Commit"])
def test_killed_worker_and_newcomer_lose_no_step(fine_tuning, plain, optimizer, rank, point):
    with fine_tuning(optimizer) as world:
        newcomer = world.start(2)
        world.prepared([newcomer])
        workers = world.begin(2, fault=f"{rank}:5:{point}")
        until("the worker is killed", workers[rank].is_gone)
        world.form([workers[1 - rank], newcomer])
        world.ends([workers[1 - rank], newcomer])
    result = Result(world.dir / "out")
    check(result, plain(optimizer))
    assert result.ranks[0]["steps"] == STEPS
    assert result.ranks[1]["steps"] == STEPS[-len(result.ranks[1]["steps"]):] and len(result.ranks[1]["steps"]) in (9, 10)
