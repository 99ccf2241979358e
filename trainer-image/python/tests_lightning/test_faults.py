"""Workers of a Trainer that are killed, stopped or added: no step is lost, and each is logged
once."""

import signal

import pytest
from conftest import Result, close
from libraries import ROUNDING, difference

STEPS = list(range(1, 19))


def check(result, wanted):
    assert difference(wanted, result) <= ROUNDING
    found, known = result.ranks[0], wanted.ranks[0]
    for name in ("steps", "last"):
        assert found[name] == known[name], name
    assert found["rates"] == pytest.approx(known["rates"], rel=1e-9)
    assert close(found["validated"], known["validated"])


@pytest.mark.parametrize("uses", [("sgd",), ("adamw", "clip"), ("sgd", "epochs", "steps")])
def test_two_workers_equal_one_plain_trainer(training, plain, uses):
    with training(*uses) as world:
        world.ends(world.begin(2))
    result, wanted = Result(world.dir / "out"), plain(*uses)
    check(result, wanted)
    for name in ("loss_step", "loss_epoch", "norm", "val_loss"):
        assert result.logged(name) == pytest.approx(wanted.logged(name), rel=1e-9), name
    assert result.ranks[1]["steps"] == wanted.ranks[0]["steps"]
    assert close(result.ranks[1]["epochs"], wanted.ranks[0]["epochs"])
    assert result.ranks[1]["log"] == []


KILLS = [("sgd", rank, point) for rank in (0, 1) for point in ("Forward", "Backward", "Agree", "Update", "Commit")]
KILLS += [("adamw clip", 1, point) for point in ("Backward", "Agree", "Commit")]


@pytest.mark.parametrize(("uses", "rank", "point"), KILLS)
def test_killed_worker_and_newcomer_lose_no_step(training, plain, uses, rank, point):
    uses = uses.split()
    with training(*uses) as world:
        world.replace_killed(rank, ROUNDHOUSE_FAULT=f"{rank}:9:{point}")
    result, wanted = Result(world.dir / "out"), plain(*uses)
    check(result, wanted)
    # The newcomer sees all steps from its first one on, with their epochs.
    seen = result.ranks[1]["steps"]
    assert len(seen) in (9, 10) and seen == wanted.ranks[0]["steps"][-len(seen) :]
    logged = result.logged("loss_step")
    assert logged == pytest.approx(
        {step: value for step, value in wanted.logged("loss_step").items() if step in logged}, rel=1e-9
    )
    assert len(logged) == 18 if rank else len(logged) >= 9


# An epoch has 6 steps.
@pytest.mark.parametrize("stopped_after", [3, 5])
def test_worker_that_was_stopped_for_an_epoch_joins_again(training, plain, stopped_after):
    with training("sgd", "average") as world:
        world.slow(150)
        workers = world.begin(2)
        world.reach(workers, stopped_after)
        workers[1].kill(signal.SIGSTOP)
        world.form([workers[0]], others_leave=False)
        world.reach([workers[0]], 13)
        world.slow(1000)
        workers[1].kill(signal.SIGCONT)
        world.form(workers)
        world.reach(workers, 15)
        world.slow(0)
        world.ends(workers)
    result, wanted = Result(world.dir / "out"), plain("sgd", "average")
    check(result, wanted)
    averages = [result.ranks[rank]["average"] for rank in (0, 1)]
    assert averages == pytest.approx([wanted.ranks[0]["average"]] * 2, rel=ROUNDING, abs=0)
    seen = result.steps(rank=1)
    assert seen == sorted(set(seen)) and set(STEPS) - set(seen) and seen[-1] == STEPS[-1]
    known = {step: [step, epoch, index] for step, epoch, index in wanted.ranks[0]["steps"]}
    assert [one for one in result.ranks[1]["steps"] if one != known[one[0]]] == []
