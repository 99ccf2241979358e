"""Features of a Trainer in a job of two workers, most of which lose one: evaluations, exports,
early stopping, and losses of different kinds."""

import pytest
import transformers
from conftest import Result
from libraries import ROUNDING, difference

IS_OLD = int(transformers.__version__.split(".")[1]) < 16


def with_newcomer(world, killed, **variables):
    """The result of a job of two workers that replaces one which ends by itself."""
    world.replace_killed(killed, **variables)
    return Result(world.dir / "out")


@pytest.mark.parametrize(("kind", "name", "shown"), [("evaluate", "eval_loss", "evalLoss"), ("accuracy", "eval_accuracy", "evalAccuracy")])
def test_job_shows_the_result_of_the_last_evaluation(fine_tuning, plain, kind, name, shown):
    with fine_tuning("sgd", kind) as world:
        workers = world.begin(2)
        world.ends(workers)
    wanted = plain("sgd", kind).logged(name)
    assert [worker.status()["progress"][shown] for worker in workers] == pytest.approx([wanted[max(wanted)]] * 2, rel=1e-6)
    assert difference(plain("sgd", kind), Result(world.dir / "out")) <= ROUNDING


@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.parametrize("kind", ["evaluate", "accuracy"])
def test_evaluation_that_loses_a_worker_has_the_same_result(fine_tuning, plain, killed, kind):
    with fine_tuning("sgd", kind) as world:
        result = with_newcomer(world, killed, KILL_IN_EVALUATION=f"{killed}:4")
    wanted = plain("sgd", kind)
    for name in ("eval_loss", *(["eval_accuracy"] if kind == "accuracy" else [])):
        assert result.logged(name) == pytest.approx(wanted.logged(name), rel=1e-6), name
    assert difference(wanted, result) <= ROUNDING


def test_newcomer_stops_early_with_the_others(fine_tuning, plain):
    with fine_tuning("sgd", "stop") as world:
        result = with_newcomer(world, 0, ROUNDHOUSE_FAULT="0:5:Backward")
    assert [result.ranks[rank]["last"] for rank in (0, 1)] == [9, 9]
    # Both have the weights of the best evaluation, after step 3.
    assert difference(plain("sgd", "stop"), result) <= ROUNDING
    assert sorted(path.name for path in (world.dir / "out").glob("checkpoint-*")) == ["checkpoint-3", "checkpoint-6", "checkpoint-9"]


@pytest.mark.parametrize("killed", [0, 1])
def test_loss_in_the_evaluation_that_stops_costs_nothing(fine_tuning, plain, killed):
    with fine_tuning("sgd", "stop") as world:
        result = with_newcomer(world, killed, KILL_IN_EVALUATION=f"{killed}:9")
    assert [result.ranks[rank]["last"] for rank in (0, 1)] == [9, 9]
    assert difference(plain("sgd", "stop"), result) <= ROUNDING


def test_newcomer_gets_a_best_metric_that_is_not_finite(fine_tuning, plain):
    with fine_tuning("sgd", "nan") as world:
        result = with_newcomer(world, 0, ROUNDHOUSE_FAULT="0:5:Backward")
    assert difference(plain("sgd", "nan"), result) <= ROUNDING


def test_job_from_a_checkpoint_keeps_the_patience_of_callbacks(fine_tuning, plain):
    with fine_tuning("sgd", "stop", checkpoints=True, every_steps=4) as world:
        world.restart_after(8)
    result = Result(world.dir / "out")
    # Without its earlier evaluations the callback would wait until step 14.
    assert result.ranks[0]["last"] == 9 and result.ranks[0]["steps"][0] > 1
    assert difference(plain("sgd", "stop"), result) <= ROUNDING


def test_rank_that_cannot_measure_the_loss_asks_another(fine_tuning, plain):
    with fine_tuning("sgd", "repeated") as world:
        result = with_newcomer(world, 0, ROUNDHOUSE_FAULT="0:5:Backward")
    assert difference(plain("sgd", "repeated"), result) <= ROUNDING


# The losses of transformers compute in 32 bits.
@pytest.mark.parametrize(("use", "tolerance"), [("random", ROUNDING), ("own", 1e-6), ("smooth", 1e-6)])
def test_three_workers_equal_one_plain_trainer(fine_tuning, plain, use, tolerance):
    if use == "smooth" and IS_OLD:
        pytest.skip("label smoothing is refused with this version of transformers")
    with fine_tuning("sgd", use) as world:
        world.ends(world.begin(3))
    assert difference(plain("sgd", use), Result(world.dir / "out")) <= tolerance
