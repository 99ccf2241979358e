"""Evaluations with metrics, whose passes the workers divide: the metrics are those of
transformers.Trainer in one process, bit by bit."""

import math

import pytest
from conftest import HERE, Result
from replicas import ReplicaWorld

STEPS = [1, 2, 3]
NUM_BATCHES = 7
METRICS = "eval_checksum", "eval_width", "eval_loss"


def check(result, wanted):
    for name in METRICS:
        assert result.logged(name) == wanted.logged(name), name
        assert list(wanted.logged(name)) == STEPS
    assert result.ranks[0]["steps"] == STEPS


def evaluations(result, rank):
    """The numbers of passes and of batches of which the callbacks know, of each evaluation."""
    return [entry[1:] for entry in result.ranks[rank]["found"] if entry[0] != "predict"]


def shared(job, number, *uses):
    with job("evaluate.py", *uses) as world:
        world.ends(world.begin(number))
    return Result(world.dir / "out")


CASES = [(2, "nested predict"), (3, "nested predict"), (2, "batches preprocess"), (2, "generate")]


@pytest.mark.parametrize(("number", "uses"), CASES)
def test_each_worker_computes_a_part_of_the_predictions(job, plain_of, number, uses):
    result, wanted = shared(job, number, *uses.split()), plain_of("evaluate.py", *uses.split())
    check(result, wanted)
    predicted = [[entry for entry in one.ranks[0]["found"] if entry[0] == "predict"] for one in (result, wanted)]
    assert predicted[0] == predicted[1]
    parts = [evaluations(result, rank) for rank in range(number)]
    for index, (all_passes, noted) in enumerate(evaluations(wanted, 0)):
        passes = [part[index][0] for part in parts]
        # The script also predicts for a part of the set.
        most = math.ceil(NUM_BATCHES / number) + math.ceil((all_passes - NUM_BATCHES) / number)
        assert sum(passes) == all_passes and max(passes) <= most
        assert [part[index][1] for part in parts] == [noted] * number


@pytest.mark.parametrize("use", ["inner", "averaged", "part"])
def test_predictions_of_scripts_with_own_parts_have_the_same_metrics(job, plain_of, use):
    result, wanted = shared(job, 2, use), plain_of("evaluate.py", use)
    check(result, wanted)


@pytest.mark.parametrize("use", ["large", "inputs", "loop"])
def test_predictions_that_are_not_exchanged_are_computed_by_all(job, plain_of, use):
    result, wanted = shared(job, 2, use), plain_of("evaluate.py", *([] if use == "large" else [use]))
    check(result, wanted)
    assert [evaluations(result, rank) for rank in (0, 1)] == [evaluations(wanted, 0)] * 2


@pytest.mark.parametrize("use", ["loop", "late"])
def test_loss_that_is_not_divided_is_computed_by_all(job, plain_of, use):
    result, wanted = shared(job, 2, "loss", use), plain_of("evaluate.py", "loss", use)
    assert result.logged("eval_loss") == wanted.logged("eval_loss")
    assert [evaluations(result, rank) for rank in (0, 1)] == [evaluations(wanted, 0)] * 2


@pytest.mark.parametrize("uses", ["", "batches", "loss"])
@pytest.mark.parametrize(("number", "size"), [(0, "no-batch"), (1, "one-batch")])
def test_evaluation_with_fewer_batches_than_workers(job, plain_of, number, size, uses):
    result, wanted = shared(job, 2, size, *uses.split()), plain_of("evaluate.py", size, *uses.split())
    assert result.ranks[0]["steps"] == STEPS
    known = ("eval_loss",) if uses == "loss" else METRICS
    for name in METRICS:
        assert result.logged(name) == wanted.logged(name), name
        assert list(result.logged(name)) == (STEPS if number and name in known else [])
    passes = [[one for one, _ in evaluations(result, rank)] for rank in (0, 1)]
    assert [sum(column) for column in zip(*passes)] == [number] * len(STEPS)


LOSSES = [(rank, variable) for rank in (0, 1) for variable in ({"KILL_IN_EVALUATION": f"{rank}:1"}, {"KILL_IN_CHUNK": f"{rank}:2"})]


@pytest.mark.parametrize(("killed", "variable"), LOSSES)
def test_worker_lost_with_its_predictions_changes_no_metric(job, plain_of, killed, variable):
    with job("evaluate.py", "nested") as world:
        world.replace_killed(killed, **variable)
    result = Result(world.dir / "out")
    check(result, plain_of("evaluate.py", "nested"))
    # The worker that stayed has computed the whole first evaluation, and each batch once.
    assert [passes for passes, _ in evaluations(result, 0)][0] == NUM_BATCHES
    assert all(noted == NUM_BATCHES for _, noted in evaluations(result, 0))


@pytest.mark.parametrize("variables", [{}, {"KILL_IN_EVALUATION": "2:1"}, {"KILL_IN_CHUNK": "2:3"}])
def test_replicas_divide_the_predictions(tmp_path, plain_of, variables):
    with ReplicaWorld(tmp_path, HERE / "scripts" / "evaluate.py", tmp_path / "out", "sharded", "nested") as world:
        replicas = [world.start_replica(0), world.start_replica(1, {0: variables})]
        world.form_replicas(replicas)
        if variables:
            world.lost(replicas.pop())
            world.publish(replicas)
        world.end_replicas(replicas)
    result, wanted = Result(tmp_path / "out"), plain_of("evaluate.py", "nested")
    check(result, wanted)
    passes = [[one for one, _ in evaluations(result, rank)] for rank in result.ranks]
    # The two processes that stayed have computed three of seven batches in two passes, and then
    # both the other four.
    assert passes == ([[2 + 4, 4, 4]] * 2 if variables else [[2, 2, 2]] * 4)
