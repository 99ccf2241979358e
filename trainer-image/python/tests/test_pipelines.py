"""Pipelines: the processes of a worker are stages of one model. See scripts/pipeline.py."""

import re

import pytest
from conftest import difference, load
from replicas import ReplicaWorld
from world import until

STEPS = 16
# float64; sums in another order.
ROUNDING = 1e-12


def numbers(process):
    """The numbers that the script has printed, in order."""
    found = re.findall(r"^(?:step \d+:|evaluated after \d+:|summed) ([\d. ]+)$", process.log.read_text(), re.MULTILINE)
    return [[float(number) for number in line.split()] for line in found]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The weights of one process with all layers, and the process."""
    known = {}

    def trained(**variables):
        key = tuple(sorted(variables.items()))
        if key not in known:
            directory = tmp_path_factory.mktemp("alone")
            with ReplicaWorld(directory, "pipeline.py", STEPS, directory / "weights", size=1, variables=variables) as world:
                (replica,) = world.begin_replicas(1)
                world.end_replicas([replica])
            known[key] = load(directory / "weights"), replica.processes[0]
        return known[key]

    return trained


def check_weights(path, alone, **variables):
    weights = alone(**variables)[0]
    # Statistics of a batch are those of the samples of one process.
    own = {name: tensor for name, tensor in weights.items() if not name.endswith("largest")}
    assert difference(own, load(path)) <= ROUNDING


@pytest.mark.parametrize(("size", "replicas"), [(2, 2), (4, 1)])
def test_pipeline_trains_to_the_weights_of_one_process(tmp_path, alone, size, replicas):
    variables = {"CLIP": "0.3", "EVALUATE": "8"}
    with ReplicaWorld(tmp_path, "pipeline.py", STEPS, tmp_path / "weights", size=size, variables=variables) as world:
        begun = world.begin_replicas(replicas)
        world.end_replicas(begun)
    check_weights(tmp_path / "weights", alone, **variables)
    expected = numbers(alone(**variables)[1])
    assert len(expected) == STEPS + STEPS // 8 + 1
    # The sum of job.sum grows with the number of replicas.
    expected[5] = [50.0, 1.5 * replicas]
    for process in (process for replica in begun for process in replica.processes):
        assert numbers(process) == [pytest.approx(line, abs=1e-10) for line in expected]


@pytest.mark.parametrize("shape", ["frozen", "without", "fsdp"])
def test_stages_with_unlike_tensors_train_exactly(tmp_path, alone, shape):
    variables = {"SHAPE": shape}
    size = 4 if shape == "fsdp" else 2
    with ReplicaWorld(tmp_path, "pipeline.py", STEPS, tmp_path / "weights", size=size, variables=variables) as world:
        world.end_replicas(world.begin_replicas(2))
    check_weights(tmp_path / "weights", alone, **variables)


@pytest.mark.parametrize("stage", [0, 1])
def test_killed_stage_costs_its_replica_and_no_step(tmp_path, alone, stage):
    points = ["Forward", "Backward", "Agree", "Column", "Update", "Commit"]
    with ReplicaWorld(tmp_path, "pipeline.py", STEPS, tmp_path / "weights", variables={"CLIP": "0.3"}) as world:
        faults = [f"{(0 if index == 0 else 2) + stage}:{2 * index + 3}:{point}" for index, point in enumerate(points)]
        doomed, survivor = world.begin_replicas(2, fault=faults[0], doomed=(0, stage))
        for fault in faults[1:]:
            world.lost(doomed)
            doomed = world.start_replica(0, {stage: {"ROUNDHOUSE_FAULT": fault}})
            # The survivor gets the ranks of the lost replica.
            world.form_replicas([survivor, doomed])
        world.lost(doomed)
        # The survivor continues alone, with micro-batches of another size.
        world.publish([survivor])
        world.end_replicas([survivor])
    check_weights(tmp_path / "weights", alone, CLIP="0.3")


@pytest.mark.parametrize("stage", [0, 1])
def test_stage_that_dies_between_micro_batches_is_lost(tmp_path, alone, stage):
    with ReplicaWorld(tmp_path, "pipeline.py", STEPS, tmp_path / "weights", variables={"CLIP": "0.3"}) as world:
        # In the third of four micro-batches of step 6. A stage makes a first pass for the shapes.
        replicas = [world.start_replica(0, {stage: {"DIES_IN_PASS": "24"}}), world.start_replica(1)]
        world.form_replicas(replicas)
        sibling = replicas[0].processes[1 - stage]
        until("the sibling ends", sibling.is_gone)
        # After 75 the agent starts the replica again.
        assert sibling.process.returncode == 75
        world.publish(replicas[1:])
        world.end_replicas(replicas[1:])
    check_weights(tmp_path / "weights", alone, CLIP="0.3")


def test_checkpoint_of_a_pipeline_is_read_by_one_process(tmp_path, alone):
    options = {"checkpoints": True, "every_steps": 4, "variables": {"CLIP": "0.3"}}
    with ReplicaWorld(tmp_path, "pipeline.py", STEPS, "weights", **options) as world:
        world.slow(100)
        replicas = world.begin_replicas(2)
        until("a checkpoint is complete", lambda: list(world.state.glob("checkpoints/gen-*-step-000000000004")))
        for replica in replicas:
            replica.kill()
        world.slow(0)
        world.size = 1
        (later,) = world.begin_replicas(1)
        world.end_replicas([later])
        assert "loaded checkpoint" in later.processes[0].log.read_text()
    check_weights(world.state / "weights", alone, CLIP="0.3")


@pytest.mark.parametrize(
    ("shape", "stage", "code", "words"),
    [
        ("uneven", 0, 64, "give all micro-batches of a step one size"),
        ("raises", 1, 1, "ValueError: no loss for these samples"),
        # In the module, whose errors a stage wraps.
        ("damaged", 0, 65, "a sample is damaged"),
    ],
)
def test_schedule_that_raises_ends_with_its_cause(tmp_path, shape, stage, code, words):
    with ReplicaWorld(tmp_path, "pipeline.py", STEPS, tmp_path / "weights", variables={"SHAPE": shape}) as world:
        (replica,) = world.begin_replicas(1)
        for process in replica.processes:
            until("the process ends", process.is_gone)
        assert [process.process.returncode for process in replica.processes] == ([code, 75] if stage == 0 else [75, code])
        assert words in replica.processes[stage].words()["message"]
