"""Evaluations that the ranks do not begin or end together, and metrics that differ between them: no
worker is lost, and the training goes to the same weights."""

import pytest
from conftest import HERE, Result
from world import World


@pytest.fixture
def calling(job):
    return lambda *uses, **options: job("callbacks.py", *uses, **options)


def shared(calling, number, *uses):
    with calling(*uses) as world:
        world.ends(world.begin(number))
    return Result(world.dir / "out")


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
