"""Replicas of scripts that do more than one pass through one model: see scripts/shapes.py."""

import pytest
from conftest import difference, load
from replicas import ReplicaWorld
from world import until

STEPS = 16
ROUNDING = 1e-12


def trained(directory, size, replicas, script="shapes.py", **variables):
    """The weights after an undisturbed training."""
    directory.mkdir()
    with ReplicaWorld(directory, script, STEPS, directory / "weights", size=size, variables=variables) as world:
        world.end_replicas(world.begin_replicas(replicas))
    return load(directory / "weights")


@pytest.mark.parametrize(
    "variables",
    [
        # One model takes what another one returns.
        {"SHAPE": "chain"},
        # The loss depends on parameters outside of the passes.
        {"SHAPE": "penalty"},
        # The norm of gradients whose sum over the replica is pending.
        {"SHAPE": "sequence", "CLIP": "0.1"},
        # Processes of one replica have different numbers of batches to evaluate.
        {"SHAPE": "evaluate", "SAMPLES": "501"},
        # A frozen layer is trained later.
        {"SHAPE": "unfreeze-tp"},
    ],
    ids=lambda variables: variables["SHAPE"],
)
def test_replicas_train_to_the_weights_of_one_process(tmp_path, variables):
    alone = trained(tmp_path / "alone", 1, 1, **variables)
    assert difference(alone, trained(tmp_path / "replicas", 2, 2, **variables)) <= ROUNDING


@pytest.mark.parametrize(
    ("policy", "most"), [("mixed", 1e-5), ("offloaded", ROUNDING), ("meta", ROUNDING), ("checkpointed", ROUNDING), ("compiled", ROUNDING)]
)
def test_policies_of_fsdp_survive_the_loss_of_a_process(tmp_path, policy, most):
    variables = {"POLICY": policy}
    alone = trained(tmp_path / "alone", 1, 1, "policies.py", **variables)
    with ReplicaWorld(tmp_path, "policies.py", STEPS, tmp_path / "weights", variables=variables) as world:
        replicas = world.begin_replicas(2, fault="1:7:Backward", doomed=(0, 1))
        world.end_replicas(world.replace(replicas))
    assert difference(alone, load(tmp_path / "weights")) <= most


def test_dropped_step_leaves_no_gradients_of_its_first_pass(tmp_path):
    variables = {"SHAPE": "halves"}
    alone = trained(tmp_path / "alone", 1, 1, **variables)
    with ReplicaWorld(tmp_path, "shapes.py", STEPS, tmp_path / "weights", variables=variables) as world:
        replicas = world.begin_replicas(2, fault="2:7:Forward", doomed=(1, 0))
        world.lost(replicas[1])
        world.publish(replicas[:1])
        world.end_replicas(replicas[:1])
    assert difference(alone, load(tmp_path / "weights")) <= ROUNDING


def test_passes_before_the_loop_do_not_keep_older_weights(tmp_path):
    variables = {"SHAPE": "look-first"}
    alone = trained(tmp_path / "alone", 1, 1, **variables)
    with ReplicaWorld(tmp_path, "shapes.py", STEPS, tmp_path / "weights", variables=variables) as world:
        world.slow(200)
        replicas = world.begin_replicas(1)
        world.reach_replicas(replicas, 3)
        with world.steps_held():
            more = world.start_replica(1)
            world.form_replicas([*replicas, more])
        world.end_replicas([*replicas, more])
    assert difference(alone, load(tmp_path / "weights")) <= ROUNDING


@pytest.mark.parametrize("point", ["Forward", "Backward", "Agree"])
def test_process_whose_sibling_is_killed_does_not_fail_the_job(tmp_path, point):
    with ReplicaWorld(tmp_path, "shapes.py", STEPS, tmp_path / "weights", variables={"SHAPE": "with"}) as world:
        replicas = world.begin_replicas(2, fault=f"3:7:{point}", doomed=(1, 1))
        sibling = replicas[1].processes[0]
        until("the sibling ends", sibling.is_gone)
        # 64 would fail the job; after 75 the agent starts the replica again.
        assert sibling.process.returncode == 75
        assert "a process of this replica is lost" in sibling.words()["message"]


def test_error_of_the_script_in_one_process_ends_its_replica(tmp_path):
    variables = {"SHAPE": "with", "RAISES": "1:7"}
    with ReplicaWorld(tmp_path, "shapes.py", STEPS, tmp_path / "weights", variables=variables) as world:
        (replica,) = world.begin_replicas(1)
        for process, code in zip(replica.processes, (75, 1)):
            # In `with batch:` a job without replicas repeats the step.
            until(f"{process.rank_file} ends", process.is_gone, 60)
            assert process.process.returncode == code


@pytest.mark.parametrize("rank", [0, 1])
def test_unequal_passes_of_a_replica_end_it_at_once(tmp_path, rank):
    variables = {"SHAPE": "passes", "EXTRA_RANK": str(rank)}
    with ReplicaWorld(tmp_path, "shapes.py", STEPS, tmp_path / "weights", variables=variables) as world:
        (replica,) = world.begin_replicas(1)
        for process in replica.processes:
            until(f"{process.rank_file} ends", process.is_gone, 60)
            assert process.process.returncode == 75
            assert "they have to make the same number of passes in a step" in process.words()["message"]


def test_result_that_one_process_saves_alone_ends_its_replica(tmp_path):
    with ReplicaWorld(tmp_path, "shapes.py", STEPS, tmp_path / "weights", variables={"SHAPE": "result"}) as world:
        (replica,) = world.begin_replicas(1)
        for process in replica.processes:
            until(f"{process.rank_file} ends", process.is_gone, 60)
            assert process.process.returncode == 75
            assert "call job.save_result in all processes, and not behind" in process.words()["message"]


def test_clipping_before_the_sum_over_replicas_is_refused(tmp_path):
    with ReplicaWorld(tmp_path, "shapes.py", STEPS, tmp_path / "weights", variables={"SHAPE": "clip"}) as world:
        (replica,) = world.begin_replicas(1)
        until("the first process ends", replica.processes[0].is_gone)
        assert "remove the call, and give job.commit max_grad_norm" in replica.processes[0].log.read_text()


def test_parameters_of_some_dimensions_are_refused(tmp_path):
    with ReplicaWorld(tmp_path, "shapes.py", STEPS, tmp_path / "weights", size=4, variables={"SHAPE": "half-sharded"}) as world:
        replica = world.start_replica(0)
        # Its siblings may notice its end before they are refused themselves.
        until("the first process ends", replica.processes[0].is_gone)
        assert replica.processes[0].process.returncode == 64
        assert "would train on the samples of one process only" in replica.processes[0].log.read_text()
