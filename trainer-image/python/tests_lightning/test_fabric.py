"""Loops with Fabric in a job: killed workers cost no step, and new ones continue."""

import pytest
from conftest import Result, close
from libraries import ROUNDING, difference


def check(result, wanted):
    assert difference(wanted, result) <= ROUNDING
    found, known = result.ranks[0], wanted.ranks[0]
    assert found["steps"] == known["steps"] and close(found["losses"], known["losses"])


@pytest.mark.parametrize("uses", [("sgd",), ("adamw", "clip", "epochs")])
def test_two_workers_equal_one_plain_loop(looping, plain_loop, uses):
    with looping(*uses) as world:
        world.ends(world.begin(2))
    check(Result(world.dir / "out"), plain_loop(*uses))


KILLS = [("sgd", 1, point) for point in ("Forward", "Backward", "Agree", "Update", "Commit")]
KILLS += [("adamw clip epochs", 0, point) for point in ("Backward", "Commit")]


@pytest.mark.parametrize(("uses", "rank", "point"), KILLS)
def test_killed_worker_and_newcomer_lose_no_step(looping, plain_loop, uses, rank, point):
    uses = uses.split()
    with looping(*uses) as world:
        world.replace_killed(rank, ROUNDHOUSE_FAULT=f"{rank}:9:{point}")
    result, wanted = Result(world.dir / "out"), plain_loop(*uses)
    check(result, wanted)
    seen = result.ranks[1]["steps"]
    assert len(seen) in (9, 10) and seen == wanted.ranks[0]["steps"][-len(seen) :]
