"""Models whose processes exchange values within each pass: see scripts/exchanges.py."""

import re

import pytest
from conftest import difference, load
from replicas import ReplicaWorld
from world import until

STEPS = 12
ROUNDING = 1e-12


def numbers(process):
    """The loss and the norm of each step."""
    found = re.findall(r"^step \d+: ([\d.]+) ([\d.]+)$", process.log.read_text(), re.MULTILINE)
    return [[float(number) for number in line] for line in found]


# With three replicas the order of a sum matters: copies must be summed in one order.
@pytest.mark.parametrize(("shape", "replicas"), [("cp", 2), ("cp-fsdp", 2), ("ep", 2), ("tied", 3)])
def test_exchanging_processes_train_exactly_with_a_kill(tmp_path, shape, replicas):
    variables = {"SHAPE": shape}
    with ReplicaWorld(tmp_path, "exchanges.py", STEPS, tmp_path / "alone", size=1, variables=variables) as world:
        (alone,) = world.begin_replicas(1)
        world.end_replicas([alone])
    directory = tmp_path / "replicas"
    directory.mkdir()
    with ReplicaWorld(directory, "exchanges.py", STEPS, directory / "weights", variables=variables) as world:
        doomed, *survivors = world.begin_replicas(replicas, fault="1:5:Backward", doomed=(0, 1))
        world.lost(doomed)
        again = world.start_replica(0)
        world.form_replicas([*survivors, again])
        world.end_replicas([*survivors, again])
    expected = numbers(alone.processes[0])
    assert len(expected) == STEPS
    for process in survivors[0].processes:
        assert numbers(process) == [pytest.approx(line, abs=1e-10) for line in expected]
    logs = [process.log.read_text() for replica in [*survivors, again] for process in replica.processes]
    assert len({bits for log in logs for bits in re.findall("^bits .*$", log, re.MULTILINE)}) <= 1
    assert difference(load(tmp_path / "alone"), load(directory / "weights")) <= ROUNDING


@pytest.mark.parametrize("shape", ["cp-forgotten", "tied-forgotten"])
def test_copies_with_different_gradients_are_refused(tmp_path, shape):
    with ReplicaWorld(tmp_path, "exchanges.py", STEPS, tmp_path / "weights", variables={"SHAPE": shape}) as world:
        replica = world.start_replica(0)
        world.form_replicas([replica])
        until("a process ends", lambda: 64 in [process.process.poll() for process in replica.processes])
        words = [process.words() or {} for process in replica.processes]
        assert any("with different gradients: before job.commit" in one.get("message", "") for one in words)
        assert all(process.status().get("step", 0) == 0 for process in replica.processes)
