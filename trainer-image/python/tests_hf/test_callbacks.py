"""Evaluations that the ranks do not begin or end together, and metrics that differ between them: no
worker is lost, and the training goes to the same weights."""

import signal

import pytest
from conftest import HERE, Result
from libraries import ROUNDING, difference
from world import World, until


@pytest.fixture
def calling(job):
    return lambda *uses, **options: job("callbacks.py", *uses, **options)


def shared(calling, number, *uses):
    with calling(*uses) as world:
        world.ends(world.begin(number))
    return Result(world.dir / "out")


def found(result):
    return [result.ranks[rank]["found"] for rank in sorted(result.ranks)]


CASES = ["alone loss", "alone", "predict", "other loss", "other", "raise-0", "raise-1", "raise-0 raise-1"]


@pytest.mark.parametrize("uses", CASES)
def test_evaluation_of_some_ranks_costs_no_worker(calling, plain_of, uses):
    result, wanted = shared(calling, 2, *uses.split()), plain_of("callbacks.py")
    assert [entry["generation"] for entry in result.ranks.values()] == [1, 1]
    assert difference(wanted, result) <= ROUNDING
    if "raise" in uses:
        assert found(result) == [["no metric"] if f"raise-{rank}" in uses else [] for rank in (0, 1)]
        return
    assert [len(one) for one in found(result)] == ([1, 1] if "other" in uses else [1, 0])
    if "alone" in uses:
        each = plain_of("callbacks.py", *uses.replace("alone", "each").split())
        assert found(result)[0][0] == pytest.approx(found(each)[0][1], rel=1e-6)


@pytest.mark.parametrize("uses", ["each loss", "each"])
def test_worker_that_is_behind_evaluates_alone(calling, plain_of, uses):
    with calling(*uses.split()) as world:
        world.slow(150)
        workers = [world.start(0), world.start(1, STOP_AFTER="2")]
        world.prepared(workers)
        world.form(workers, others_leave=False)
        stat = f"/proc/{workers[1].process.pid}/stat"
        until("rank 1 is stopped", lambda: open(stat).read().rsplit(")", 1)[1].split()[0] == "T")
        world.form([workers[0]], others_leave=False)
        world.reach([workers[0]], 4)
        workers[1].kill(signal.SIGCONT)
        world.form(workers)
        world.slow(0)
        world.ends(workers)
    result = Result(world.dir / "out")
    assert difference(plain_of("callbacks.py", *uses.split()), result) <= ROUNDING
    assert found(result)[0] == pytest.approx(found(plain_of("callbacks.py", *uses.split()))[0], rel=1e-6)


@pytest.mark.parametrize("use", ["names", "values"])
def test_all_ranks_take_the_metrics_of_rank_0(calling, plain_of, use):
    result, wanted = shared(calling, 2, use), plain_of("callbacks.py", use)
    measured = [[entry for _, entry in result.log(rank) if "eval_loss" in entry] for rank in (0, 1)]
    known = [entry for _, entry in wanted.log(0) if "eval_loss" in entry]
    assert len(known) == 2
    for first, second, one in zip(*measured, known):
        names = {name for name in one if not name.endswith(("_loss", "_runtime", "_second"))}
        assert names == {name for name in first if name in names or name not in one}
        for name in names:
            assert repr(first[name]) == repr(second[name]) == repr(one[name]), name


@pytest.mark.parametrize("uses", ["random loss", "random", "random processes"])
def test_random_numbers_of_an_evaluation_depend_on_no_worker(tmp_path, uses):
    losses = []
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        with World(tmp_path / str(number), HERE / "scripts" / "callbacks.py", tmp_path / str(number) / "out", *uses.split()) as world:
            world.ends(world.begin(number))
        losses.append(Result(world.dir / "out").logged("eval_loss"))
    assert losses[0] == losses[1] and list(losses[0]) == [3, 6]
