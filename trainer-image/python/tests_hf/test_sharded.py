"""A Trainer whose model the processes of each worker share: the weights are those of one process
with the Trainer of transformers."""

import re

import pytest
import torch
from conftest import HERE, Result
from libraries import ROUNDING, difference
from replicas import ReplicaWorld
from safetensors.torch import load_file
from test_adapters import adapted

STEPS = list(range(1, 15))


@pytest.fixture
def sharded(tmp_path):
    """A job of replicas that runs scripts/fine_tune.py with some features."""
    script = HERE / "scripts" / "fine_tune.py"

    def job(*uses, directory=tmp_path, **options):
        return ReplicaWorld(directory, script, directory / "out", "sharded", *uses, **options)

    return job


def check(result, wanted, *names):
    assert difference(wanted, result) <= ROUNDING
    for name in ("loss", "grad_norm", "learning_rate", *names):
        assert result.logged(name) == pytest.approx(wanted.logged(name), rel=1e-6), name
    assert result.ranks[0]["last"] == STEPS[-1] and result.ranks[0]["steps"] == STEPS


@pytest.mark.parametrize("uses", ["sgd ones recompute before", "sgd unlabelled evaluate", "sgd unlabelled tp accuracy", "adamw clip"])
def test_replicas_equal_one_plain_trainer(sharded, plain, uses):
    uses = uses.split()
    with sharded(*uses) as world:
        world.end_replicas(world.begin_replicas(2))
    names = {"evaluate": ["eval_loss"], "accuracy": ["eval_loss", "eval_accuracy"]}
    check(Result(world.dir / "out"), plain(*uses), *names.get(uses[-1], []))


def with_new_replica(world, killed, **variables):
    """The result of a job of two replicas, of which one loses the process ``killed[1]`` because of
    its ``variables``. Both of its processes start again, and join."""
    replica, shard = killed
    replicas = [world.start_replica(index, {shard: variables} if index == replica else {}) for index in (0, 1)]
    world.form_replicas(replicas)
    world.lost(replicas[replica])
    left = [one for one in replicas if one is not replicas[replica]]
    again = world.start_replica(replica)
    with world.steps_held():
        world.publish(left)
        world.form_replicas([*left, again])
    world.end_replicas([*left, again])
    return Result(world.dir / "out")


def test_killed_process_of_a_sharded_trainer_costs_no_step(sharded, plain):
    uses = ("adamw", "clip")
    with sharded(*uses) as world:
        result = with_new_replica(world, (1, 0), ROUNDHOUSE_FAULT="2:5:Commit")
    check(result, plain(*uses))


def test_evaluation_that_loses_a_replica_has_the_same_result(sharded, plain):
    with sharded("sgd", "evaluate") as world:
        result = with_new_replica(world, (1, 1), KILL_IN_EVALUATION="3:4")
    wanted = plain("sgd", "evaluate")
    assert result.logged("eval_loss") == pytest.approx(wanted.logged("eval_loss"), rel=1e-6)
    assert difference(wanted, result) <= ROUNDING


def test_evaluations_of_any_replicas_are_equal_bit_by_bit(sharded, tmp_path):
    found = []
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        with sharded("sgd", "evaluate", "still", directory=tmp_path / str(number)) as world:
            world.end_replicas(world.begin_replicas(number))
        found.append(Result(world.dir / "out").logged("eval_loss"))
    assert found[0] == found[1] and list(found[0]) == [4, 8, 12, 14]


def test_checkpoints_and_best_model_equal_those_of_one_process(sharded, plain):
    uses = ("adamw", "stop", "worst")
    with sharded(*uses) as world:
        result = with_new_replica(world, (0, 1), ROUNDHOUSE_FAULT="1:5:Backward")
    wanted = plain(*uses)
    # After the end each process has the best model, and rank 0 has written that.
    best = load_file(result.directory / "checkpoint-3" / "model.safetensors")
    assert all(torch.equal(result.weights[name], weight) for name, weight in best.items())
    assert [result.ranks[rank]["last"] for rank in range(4)] == [9] * 4
    assert difference(wanted, result) <= ROUNDING
    for step in (3, 6, 9):
        found, known = (one.directory / f"checkpoint-{step}" for one in (result, wanted))
        assert sorted(path.name for path in found.iterdir()) == sorted(path.name for path in known.iterdir())
        for read, name in ((load_file, "model.safetensors"), (states_of, "optimizer.pt")):
            tensors, wanted_tensors = read(found / name), read(known / name)
            assert tensors.keys() == wanted_tensors.keys()
            for key, tensor in wanted_tensors.items():
                assert torch.allclose(tensors[key], tensor, rtol=1e-9, atol=1e-12), (step, key)


def states_of(file):
    """The tensors of a saved optimizer."""
    states = torch.load(file)["state"]
    return {f"{index} {name}": value for index, state in states.items() for name, value in state.items()}


@pytest.mark.parametrize("uses", ["adamw", "sgd best", "sgd best head"])
def test_adapter_of_a_sharded_model_is_that_of_one_process(tmp_path, plain_of, uses):
    uses = uses.split()
    script = HERE / "scripts" / "adapter.py"
    with ReplicaWorld(tmp_path, script, tmp_path / "out", "sharded", *uses) as world:
        result = with_new_replica(world, (0, 0), ROUNDHOUSE_FAULT="0:5:Backward")
    assert difference(plain_of("adapter.py", *uses), result) <= ROUNDING
    loaded = adapted(result.directory)
    for name, weight in result.weights.items():
        assert torch.equal(loaded[name], weight), name


BEGIN = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import roundhouse.hf
import accelerate, torch
from small_trainer import Tiny, arguments, samples
from torch.distributed.fsdp import fully_shard
model = Tiny()
"""
TRAIN = """
trainer = roundhouse.hf.Trainer(model=model, args=arguments("out"), train_dataset=samples(), global_batch_size=4)
trainer.train()
"""
DEVICE = "roundhouse.hf.refusals.refuse_replica(roundhouse.replica.current(), model, torch.device('cuda:1'))"
REFUSED = {
    "another GPU": ("fully_shard(model, mesh=roundhouse.replica_mesh())", DEVICE, "the model is on cpu, and TrainingArguments have cuda:1"),
    "the model is not sharded": ("roundhouse.replica_mesh()", TRAIN, r"fully_shard\(model, mesh=mesh\)"),
    "stages of a pipeline": ("roundhouse.replica_mesh('pp')", TRAIN, "stages of a pipeline"),
    "a loop over Accelerate": ("roundhouse.replica_mesh()", "accelerator = roundhouse.hf.Accelerator(steps=1)", "an Accelerator with rh.replica_mesh"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_of_a_sharded_model_say_what_to_change(tmp_path, case):
    mesh, rest, words = REFUSED[case]
    script = tmp_path / "script.py"
    script.write_text(f"{BEGIN}{mesh}\n{rest}")
    with ReplicaWorld(tmp_path, script) as world:
        replica = world.start_replica(0)
        world.ends(replica.processes, 64)
        assert re.search(words, replica.processes[0].words()["message"])
        assert "launch your script" not in replica.processes[0].log.read_text()


def test_model_that_one_process_saves_alone_is_explained(tmp_path):
    script = tmp_path / "script.py"
    sharded = "fully_shard(model, mesh=roundhouse.replica_mesh())"
    script.write_text(f"{BEGIN}{sharded}\n{TRAIN}\nif trainer.is_world_process_zero():\n    trainer.save_model()")
    with ReplicaWorld(tmp_path, script) as world:
        first, second = world.begin_replicas(1)[0].processes
        world.ends([second])
        world.ends([first], 75)
        assert "call trainer.save_model() in all processes" in first.log.read_text()
