"""The best model at the end of a training: all ranks load the same complete export."""

import pathlib

import pytest
import torch
from conftest import HERE, Result
from libraries import ROUNDING, difference
from replicas import ReplicaWorld
from safetensors.torch import load_file
from world import until


@pytest.fixture
def training(job):
    return lambda *uses: job("best_model.py", *uses)


def exports(directory):
    return sorted(path.name for path in (directory / "exports").glob("checkpoint-*"))


def best(result):
    """The names of the exports that the ranks have loaded."""
    return {entry["best"] and pathlib.Path(entry["best"]).name for entry in result.ranks.values()}


def check_loaded(result, step, ranks):
    assert sorted(result.ranks) == ranks and best(result) == {f"checkpoint-{step}"}
    exported = load_file(result.directory / "exports" / f"checkpoint-{step}" / "model.safetensors")
    for weights in (result.weights, *(torch.load(result.directory / f"weights-{rank}.pt") for rank in ranks)):
        assert all(torch.equal(weights[name], weight) for name, weight in exported.items())


CASES = ["best-4", "best-8", "best-8 slow", "best-4 limit", "best-4 limit slow", "best-6 rarely"]


@pytest.mark.parametrize("uses", CASES)
def test_all_workers_load_the_best_model_of_one_process(training, plain_of, uses):
    with training(*uses.split()) as world:
        world.ends(world.begin(2))
    result, wanted = Result(world.dir / "out"), plain_of("best_model.py", *uses.split())
    assert difference(wanted, result) <= ROUNDING
    assert best(result) == best(wanted) and exports(result.directory) == exports(wanted.directory)
    check_loaded(result, best(wanted).pop().split("-")[1], [0, 1])


@pytest.mark.parametrize("uses", ["best-8", "best-8 slow"])
def test_processes_that_share_a_model_load_the_same_best_one(tmp_path, plain_of, uses):
    with ReplicaWorld(tmp_path, HERE / "scripts" / "best_model.py", tmp_path / "out", "sharded", *uses.split()) as world:
        world.end_replicas(world.begin_replicas(1))
    result, wanted = Result(tmp_path / "out"), plain_of("best_model.py", *uses.split())
    assert difference(wanted, result) <= ROUNDING
    assert best(result) == {"checkpoint-8"} and sorted(result.ranks) == [0, 1]


@pytest.mark.parametrize("where", ["evaluation", "empty directory", "half a file"])
def test_export_that_is_incomplete_is_not_the_best_model(training, where):
    with training("best-4") as world:
        world.replace_killed(0, KILL_WHERE=where)
    check_loaded(Result(world.dir / "out"), 2, [0, 1])


@pytest.mark.parametrize("where", ["evaluation", "empty directory", "half a file"])
def test_last_weights_stay_if_they_are_the_best_without_an_export(training, where):
    with training("best-8") as world:
        workers = world.start(0, KILL_WHERE=where), world.start(1)
        world.prepared(workers)
        world.form(workers, others_leave=False)
        until("rank 0 is killed", workers[0].is_gone)
        world.form([workers[1]])
        world.ends([workers[1]])
    result = Result(world.dir / "out")
    earlier = load_file(result.directory / "exports" / "checkpoint-6" / "model.safetensors")
    assert result.ranks[0]["last"] == 8 and not torch.equal(result.weights["last.weight"], earlier["last.weight"])


def test_export_of_an_earlier_job_is_not_the_best_model(training):
    with training("best-6", "rarely", "limit") as world:
        earlier = world.dir / "out" / "exports" / "checkpoint-6"
        earlier.mkdir(parents=True)
        (earlier / "model.safetensors").write_bytes(b"weights of another model")
        world.ends(world.begin(2))
    # The last evaluation that was also exported is better than the others.
    check_loaded(Result(world.dir / "out"), 4, [0, 1])
