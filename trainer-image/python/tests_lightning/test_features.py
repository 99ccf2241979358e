"""Features of a Trainer in a job of two workers, most of which lose one: evaluations, early
stopping, ModelCheckpoint."""

import csv

import pytest
from conftest import Result, close
from libraries import ROUNDING, difference


def with_newcomer(world, killed, number=2, **variables):
    """The result of a job that replaces a worker which ends by itself."""
    world.replace_killed(killed, number, **variables)
    return Result(world.dir / "out")


@pytest.mark.parametrize(("killed", "number"), [(0, 2), (1, 3)])
def test_evaluation_that_loses_a_worker_has_the_same_result(training, plain, killed, number):
    with training("sgd") as world:
        result = with_newcomer(world, killed, number, KILL_IN_EVALUATION=f"{killed}:6")
    wanted = plain("sgd")
    assert close(result.ranks[0]["validated"], wanted.ranks[0]["validated"])
    assert close(result.ranks[number - 1]["validated"], wanted.ranks[0]["validated"][1:])
    assert difference(wanted, result) <= ROUNDING


@pytest.mark.parametrize(
    "where", [{"ROUNDHOUSE_FAULT": "0:5:Backward"}, {"KILL_IN_EVALUATION": "0:9"}, {"KILL_IN_EVALUATION": "1:9"}]
)
def test_newcomer_stops_early_with_the_others(training, plain, where):
    killed = int(next(iter(where.values()))[0])
    with training("sgd", "stop") as world:
        result = with_newcomer(world, killed, **where)
    assert [result.ranks[rank]["last"] for rank in (0, 1)] == [9, 9]
    assert difference(plain("sgd", "stop"), result) <= ROUNDING
    # The newcomer knows the best model, which another worker has found.
    wanted = plain("sgd", "stop").ranks[0]["best"]
    assert [result.ranks[rank]["best"] for rank in (0, 1)] == [wanted, wanted]
    if where != {"KILL_IN_EVALUATION": "0:9"}:  # Rank 0 is lost before it writes the file.
        assert [path.name for path in (world.dir / "out" / "best").iterdir()] == [wanted]


def test_job_from_a_checkpoint_keeps_the_patience_of_callbacks(training, plain):
    with training("sgd", "stop", checkpoints=True, every_steps=4) as world:
        world.restart_after(8)
    result = Result(world.dir / "out")
    # Without its earlier evaluations the callback would wait until step 12 or longer.
    assert result.ranks[0]["last"] == 9 and result.steps()[0] > 1
    assert difference(plain("sgd", "stop"), result) <= ROUNDING


def test_repeated_step_is_logged_once_in_the_epoch(training, plain):
    with training("sgd", "accuracy") as world:
        # The lost worker has logged nothing in this epoch, which begins with step 7.
        result = with_newcomer(world, 1, ROUNDHOUSE_FAULT="1:7:Agree")
    wanted = plain("sgd", "accuracy")
    for name in ("loss_epoch", "accuracy_epoch", "samples_epoch"):
        assert result.logged(name) == pytest.approx(wanted.logged(name), rel=1e-9), name


def test_metrics_of_an_earlier_rank_0_are_kept(training):
    with training("sgd", "csv") as world:
        with_newcomer(world, 0, ROUNDHOUSE_FAULT="0:9:Backward")
    steps = []
    for name in ("metrics-1.csv", "metrics.csv"):
        rows = list(csv.DictReader(open(world.dir / "out" / "lightning_logs" / "all" / name)))
        steps += [int(row["step"]) for row in rows if row["loss_step"]]
    assert steps == list(range(18))


def test_three_workers_share_the_metrics_of_a_step(training, plain):
    with training("sgd", "accuracy") as world:
        world.ends(world.begin(3))
    result, wanted = Result(world.dir / "out"), plain("sgd", "accuracy")
    for name in ("accuracy_step", "accuracy_epoch", "val_accuracy", "samples_step"):
        assert result.logged(name) == pytest.approx(wanted.logged(name), rel=1e-9), name


def test_order_of_a_shuffled_loader_is_that_of_the_sampler(training, plain):
    with training("sgd", "shuffle") as world:
        world.ends(world.begin(2))
    assert difference(plain("sgd", "shuffle"), Result(world.dir / "out")) <= ROUNDING
