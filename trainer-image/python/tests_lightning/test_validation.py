"""Validations whose batches the workers divide: the metrics are those of a plain Trainer, bit for
bit."""

import pytest
from conftest import HERE, Result
from world import World

SCRIPT = HERE / "scripts" / "validate.py"

STEPS = [2, 4, 6, 8]


@pytest.fixture
def validating(job):
    return lambda *uses: job("validate.py", *uses)


@pytest.fixture
def wanted(plain_of):
    return lambda *uses: plain_of("validate.py", *uses).ranks[0]


def check(result, wanted):
    for rank, one in result.ranks.items():
        for name in ("found", "names", "last", "best"):
            assert one[name] == wanted[name], (rank, name)
    assert result.ranks[0]["log"] == wanted["log"]


def num_batches(one, step):
    return sum(place[0] == step for place in one["seen"])


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("uses", [(), ("two", "limit")])
def test_divided_validation_has_the_metrics_of_one_process(validating, wanted, uses, number):
    with validating(*uses) as world:
        world.ends(world.begin(number))
    result = Result(world.dir / "out")
    check(result, wanted(*uses))
    # Each batch on one rank, apart from the first one, with which each rank begins in step 2.
    batches = sorted(place for one in result.ranks.values() for place in one["seen"])
    assert batches == [[2, 0, 0]] * (number - 1) + wanted(*uses)["seen"]
    assert [step for step, _ in result.ranks[0]["found"]] == STEPS
    assert {tuple(one["drawn"]) for one in result.ranks.values()} == {tuple(result.ranks[0]["drawn"])}


@pytest.mark.parametrize(("killed", "number"), [(0, 2), (1, 2), (1, 3)])
def test_worker_killed_in_a_divided_validation(validating, wanted, killed, number):
    with validating() as world:
        world.replace_killed(killed, number, KILL_IN_EVALUATION=f"{killed}:4")
    result, known = Result(world.dir / "out"), wanted()
    newest = result.ranks[number - 1]
    assert newest["found"] == known["found"][2:]
    for rank, one in result.ranks.items():
        assert [one["last"], one["best"]] == [known["last"], known["best"]]
        if rank < number - 1:
            assert one["found"] == known["found"]
            # The rank has computed the batches of the killed one.
            assert num_batches(one, 4) == 7 and num_batches(one, 6) < 7


@pytest.mark.parametrize("uses", ["hook", "metric", "shuffled"])
def test_validation_that_cannot_be_divided_stays_whole(validating, wanted, uses):
    with validating(uses) as world:
        world.ends(world.begin(2))
    result = Result(world.dir / "out")
    if uses != "shuffled":
        check(result, wanted(uses))
    for one in result.ranks.values():
        assert [num_batches(one, step) for step in STEPS] == [7] * 4


@pytest.mark.parametrize("uses", ["keeps", "writes"])
def test_side_effect_of_a_validation_makes_it_whole(validating, wanted, uses):
    with validating(uses) as world:
        world.ends(world.begin(2))
    result = Result(world.dir / "out")
    assert result.ranks[0]["log"] == wanted(uses)["log"]
    assert result.ranks[0]["seen"] == wanted(uses)["seen"]  # Rank 0 has kept the order.
    for one in result.ranks.values():
        assert one["found"] == wanted(uses)["found"]


@pytest.mark.parametrize("uses", ["random", "later"])
def test_random_numbers_of_a_validation_are_those_of_a_whole(tmp_path, uses):
    ranks = []
    for number, more in enumerate([(), ("off",)]):
        directory = tmp_path / str(number)
        directory.mkdir()
        with World(directory, SCRIPT, directory / "out", uses, *more) as world:
            world.ends(world.begin(2))
        ranks += Result(directory / "out").ranks.values()
    assert [(one["found"], one["drawn"]) for one in ranks] == [(ranks[0]["found"], ranks[0]["drawn"])] * 4
