"""Replicas: the processes of a worker share one copy of the state."""

import signal

import pytest
from conftest import difference, load
from replicas import ReplicaWorld
from world import until

STEPS = 24
# float64; sums in another order.
ROUNDING = 1e-12


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The weights of scripts/sharded.py after training in one process."""
    known = {}

    def weights(**variables):
        key = tuple(sorted(variables.items()))
        if key not in known:
            directory = tmp_path_factory.mktemp("alone")
            with ReplicaWorld(directory, "sharded.py", STEPS, directory / "weights", size=1, variables=variables) as world:
                world.end_replicas(world.begin_replicas(1))
            known[key] = load(directory / "weights")
        return known[key]

    return weights


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("optimizer", [{"SGD": "1"}, {}])
def test_replicas_of_two_train_to_the_weights_of_one_process(tmp_path, alone, replicas, optimizer):
    with ReplicaWorld(tmp_path, "sharded.py", STEPS, tmp_path / "weights", variables=optimizer) as world:
        world.end_replicas(world.begin_replicas(replicas))
    assert difference(alone(**optimizer), load(tmp_path / "weights")) <= ROUNDING


@pytest.mark.parametrize(("parallel", "optimizer"), [("tp", {"SGD": "1"}), ("tp", {}), ("both", {"SGD": "1"})])
def test_tensor_parallel_replicas_train_to_the_same_weights(tmp_path, alone, parallel, optimizer):
    size = 4 if parallel == "both" else 2
    variables = {**optimizer, "PARALLEL": parallel}
    with ReplicaWorld(tmp_path, "sharded.py", STEPS, tmp_path / "weights", size=size, variables=variables) as world:
        world.end_replicas(world.begin_replicas(2))
    assert difference(alone(**optimizer, PARALLEL="tp"), load(tmp_path / "weights")) <= ROUNDING


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("point", ["Forward", "Backward", "Agree", "Column", "Update", "Commit"])
def test_killed_process_costs_its_replica_and_no_step(tmp_path, alone, point, shard):
    # The ranks of the first replica are 0 and 1.
    fault = f"{shard}:11:{point}"
    with ReplicaWorld(tmp_path, "sharded.py", STEPS, tmp_path / "weights", variables={"SGD": "1"}) as world:
        replicas = world.begin_replicas(3, fault=fault, doomed=(0, shard))
        world.end_replicas(world.replace(replicas))
    assert difference(alone(SGD="1"), load(tmp_path / "weights")) <= ROUNDING


# Otherwise one process would begin a step and wait for the other, which waits for a generation.
@pytest.mark.parametrize("fault", ["1:1:Formed", "1:8:Compare"])
def test_collective_that_fails_in_one_process_fails_in_its_replica(tmp_path, alone, fault):
    options = {"checkpoints": True, "every_steps": 8, "variables": {"SGD": "1"}}
    with ReplicaWorld(tmp_path, "sharded.py", STEPS, "weights", **options) as world:
        replicas = [world.start_replica(0, {1: {"ROUNDHOUSE_FAULT_LOSE": fault}}), world.start_replica(1)]
        world.form_replicas(replicas)
        processes = [process for replica in replicas for process in replica.processes]
        until("all wait for a generation", lambda: all(process.status().get("phase") == "Stranded" for process in processes), 60)
        world.publish(replicas)
        world.end_replicas(replicas)
    assert difference(alone(SGD="1"), load(world.state / "weights")) <= ROUNDING


@pytest.mark.parametrize("shard", [0, 1])
def test_process_that_waits_for_a_generation_ends_after_its_sibling(tmp_path, shard):
    with ReplicaWorld(tmp_path, "sharded.py", STEPS, tmp_path / "weights") as world:
        world.slow(100)
        lost, replica = world.begin_replicas(2)
        world.reach_replicas([lost, replica], 2)
        lost.kill()
        until("both are stranded", lambda: all(process.status().get("phase") == "Stranded" for process in replica.processes))
        replica.processes[shard].kill()
        sibling = replica.processes[1 - shard]
        until("the sibling ends", sibling.is_gone, 60)
        assert sibling.process.returncode == 75
        assert "a process of this replica is lost" in sibling.words()["message"]


def test_last_of_two_replicas_continues(tmp_path, alone):
    with ReplicaWorld(tmp_path, "sharded.py", STEPS, tmp_path / "weights") as world:
        replicas = world.begin_replicas(2, fault="3:11:Backward", doomed=(1, 1))
        world.lost(replicas[1])
        world.publish(replicas[:1])
        world.end_replicas(replicas[:1])
    assert difference(alone(), load(tmp_path / "weights")) <= ROUNDING


@pytest.mark.parametrize(
    "parallel, size, other, later",
    [("fsdp", 2, "fsdp", 1), ("fsdp", 3, "fsdp", 2), ("tp", 2, "tp", 4), ("both", 4, "both", 2), ("both", 4, "tp", 2), ("tp", 2, "both", 4)],
)
def test_checkpoint_is_read_by_other_numbers_of_processes(tmp_path, alone, parallel, size, other, later):
    variables = {"SGD": "1", "PARALLEL": parallel}
    options = {"checkpoints": True, "every_steps": 8, "variables": variables}
    with ReplicaWorld(tmp_path, "sharded.py", STEPS, "weights", size=size, **options) as world:
        world.slow(100)
        replicas = world.begin_replicas(2)
        until("a checkpoint is complete", lambda: list(world.state.glob("checkpoints/gen-*-step-000000000008")))
        for replica in replicas:
            replica.kill()
        world.slow(0)
        world.size, world.variables["PARALLEL"] = later, other
        replicas = world.begin_replicas(2)
        world.end_replicas(replicas)
        log = replicas[0].processes[0].log.read_text()
        assert "loaded checkpoint" in log and "step 8 of generation 1" in log
    expected = alone(SGD="1", **({} if parallel == "fsdp" else {"PARALLEL": "tp"}))
    assert difference(expected, load(world.state / "weights")) <= ROUNDING


def test_replica_that_leaves_last_saves_its_state(tmp_path, alone):
    options = {"checkpoints": True, "every_steps": 1000, "variables": {"SGD": "1"}}
    with ReplicaWorld(tmp_path, "sharded.py", STEPS, "weights", **options) as world:
        world.slow(100)
        replicas = world.begin_replicas(2)
        world.reach_replicas(replicas, 5)
        replicas[0].kill()
        # No newer generation is known: both processes of the other replica leave alone.
        until("it is stranded", lambda: all(process.status().get("phase") == "Stranded" for process in replicas[1].processes))
        for process in replicas[1].processes:
            process.kill(signal.SIGTERM)
        world.ends(replicas[1].processes, 143)
        world.slow(0)
        later = world.begin_replicas(1)
        world.end_replicas(later)
        log = later[0].processes[0].log.read_text()
        assert "loaded checkpoint" in log
        first = int(log.split("\nstep ")[1].split(":")[0])
        assert first > 5
    assert difference(alone(SGD="1"), load(world.state / "weights")) <= ROUNDING


def test_new_replica_gets_the_state_of_another(tmp_path, alone):
    with ReplicaWorld(tmp_path, "sharded.py", STEPS, tmp_path / "weights") as world:
        world.slow(200)
        first = world.begin_replicas(1)
        world.reach_replicas(first, 3)
        with world.steps_held(then=200):
            more = [world.start_replica(1), world.start_replica(2)]
            world.form_replicas([*first, *more])
        world.reach_replicas(more, 8)
        # The replica of rank 0 leaves.
        world.publish(more)
        world.slow(0)
        world.end_replicas(more)
    assert difference(alone(), load(tmp_path / "weights")) <= ROUNDING


def test_evaluation_counts_each_sample_once(tmp_path):
    said = []
    for parallel, size, replicas in [("fsdp", 1, 1), ("fsdp", 2, 2), ("tp", 1, 1), ("tp", 2, 2)]:
        directory = tmp_path / f"{parallel}-{size}"
        directory.mkdir()
        variables = {"SGD": "1", "EVALUATE": "8", "PARALLEL": parallel}
        with ReplicaWorld(directory, "sharded.py", STEPS, directory / "weights", size=size, variables=variables) as world:
            begun = world.begin_replicas(replicas)
            world.end_replicas(begun)
            log = begun[0].processes[0].log.read_text()
        said.append([line.split(":")[1].split() for line in log.splitlines() if line.startswith("evaluated")])
        assert len(said[-1]) == STEPS // 8
    for one, other in (said[:2], said[2:]):
        for (loss, accuracy), (other_loss, other_accuracy) in zip(one, other):
            assert float(loss) == pytest.approx(float(other_loss), abs=1e-9) and accuracy == other_accuracy


def test_passes_without_sync_accumulate_exactly(tmp_path, alone):
    with ReplicaWorld(tmp_path, "sharded.py", STEPS, tmp_path / "weights", variables={"SGD": "1", "PASSES": "3"}) as world:
        world.end_replicas(world.begin_replicas(2))
    assert difference(alone(SGD="1"), load(tmp_path / "weights")) <= ROUNDING


def test_statistics_of_a_batch_are_equal_in_all_replicas(tmp_path):
    with ReplicaWorld(tmp_path, "sharded.py", STEPS, "weights", checkpoints=True, variables={"NORM": "1"}) as world:
        # The replicas compare their states before the last checkpoint.
        world.end_replicas(world.begin_replicas(2))
    state = load(world.state / "weights")
    assert state["1.norm.num_batches_tracked"] == STEPS
    assert state["1.norm.running_mean"].abs().max() > 0
