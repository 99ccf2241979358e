"""Validations whose batches the workers divide: the metrics are those of a plain Trainer, bit for
bit."""

import math

import pytest
import roundhouse as rh
import torch
from conftest import Result
from roundhouse.lightning.logged import Logged, batches_of_row, row_of

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
    # What follows a validation draws the same random numbers on all ranks.
    assert {tuple(one["drawn"]) for one in result.ranks.values()} == {tuple(result.ranks[0]["drawn"])}


def num_batches(one, step):
    return sum(place[0] == step for place in one["seen"])


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("uses", [(), ("two", "limit"), ("one-batch",)])
def test_divided_validation_has_the_metrics_of_one_process(validating, wanted, uses, number):
    with validating(*uses) as world:
        world.ends(world.begin(number))
    result = Result(world.dir / "out")
    check(result, wanted(*uses))
    # Each batch on one rank.
    assert sorted(place for one in result.ranks.values() for place in one["seen"]) == wanted(*uses)["seen"]
    assert [step for step, _ in result.ranks[0]["found"]] == STEPS


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


@pytest.mark.parametrize(
    ("uses", "other", "words"),
    [
        ("metric", {}, "the module has a MulticlassAccuracy of torchmetrics"),
        ("large", {}, "the logged values have more than"),
        ("zero", {}, r"self.log(..., rank_zero_only=True) lacks the batches of other workers"),
        ("late-zero", {}, r"self.log(..., rank_zero_only=True) lacks the batches of other workers"),
        ("looks", {"LOOKS": "1"}, "another worker cannot divide it"),
        ("uneven", {"NUM_COPIES": "2"}, "the workers have validation sets of different lengths"),
    ],
)
def test_validation_that_is_not_divided_has_the_same_metrics(validating, wanted, uses, other, words):
    """``other``: variables of the second worker alone."""
    with validating(uses) as world:
        workers = [world.start(0), world.start(1, **other)]
        world.prepared(workers)
        world.form(workers)
        world.ends(workers)
    result = Result(world.dir / "out")
    check(result, wanted(uses))
    assert [num_batches(result.ranks[0], step) for step in STEPS] == [7] * 4
    logs = [worker.log.read_text().count(f"each worker runs the whole validation: {words}") for worker in workers]
    assert logs == [1, 0]


OPTIONS = {"prog_bar": True, "on_step": None, "batch_size": 3}
VALUES = [0.1, -0.0, math.inf, 1e-45, 2.0**-1074, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool])
@pytest.mark.parametrize("reduce_fx", ["mean", "MAX", torch.min, min])
def test_logged_values_arrive_with_all_bits(dtype, reduce_fx):
    values = [torch.tensor(value).to(dtype) for value in VALUES if math.isfinite(value) or dtype.is_floating_point]
    options = {**OPTIONS, "reduce_fx": reduce_fx}
    found = batches_of_row(row_of({7: [Logged("loss", value, options) for value in values]}), torch.device("cpu"))
    assert list(found) == [7]
    for value, (name, other, others) in zip(values, found[7]):
        assert (name, others, other.dtype) == ("loss", options, dtype)
        assert torch.equal(value, other) and torch.equal(value.signbit(), other.signbit())


def test_logged_complex_number_arrives():
    value = torch.tensor(complex(0.1, -2.5))
    row = row_of({0: [Logged("loss", value, {**OPTIONS, "reduce_fx": "sum"})]})
    assert torch.equal(batches_of_row(row, torch.device("cpu"))[0][0].value, value)


def test_reduction_that_lightning_does_not_know_is_refused():
    with pytest.raises(rh.ConfigError, match=r"self.log\('loss', reduce_fx=.*: give mean, sum, min or max"):
        row_of({0: [Logged("loss", torch.ones(()), {**OPTIONS, "reduce_fx": torch.prod})]})
