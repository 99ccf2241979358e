"""Replicas of several pods: each process has an address of its own, as in a pod."""

import itertools
import os
import re
import shutil
import signal

import pytest
from conftest import difference, load
from replicas import Replica, ReplicaWorld
from world import Worker, until

STEPS = 24
# float64; sums in another order.
ROUNDING = 1e-12
_addresses = itertools.count(1)


class LargeReplica(Replica):
    """A replica of pods with one process each, for one life."""

    def __init__(self, world, index, size, doomed):
        self.index = index
        world.lives += 1
        self.life = f"life-{index}-{world.lives}"
        indices = [next(_addresses) for _ in range(size)]
        addresses = ",".join(world.address_of(pod) for pod in indices)
        self.processes = []
        for pod, at in enumerate(indices):
            self.directory(world, pod).mkdir()
            variables = {
                "ROUNDHOUSE_SHARDED": "true",
                "ROUNDHOUSE_REPLICA_FILE": str(self.directory(world, pod) / "store"),
                "ROUNDHOUSE_REPLICA_LIFE": self.life,
                "ROUNDHOUSE_REPLICA_POD": str(pod),
                "ROUNDHOUSE_REPLICA_ADDRESSES": addresses,
                "ROUNDHOUSE_REPLICA_STORE_PORT": "29564",
                "GLOO_SOCKET_IFNAME": "lo",
            }
            if world.has_copies:
                variables["ROUNDHOUSE_CHECKPOINT_LOCAL_DIR"] = str(world.volume(index, pod))
                variables["ROUNDHOUSE_CHECKPOINT_LOCAL_EVERY_STEPS"] = "1000"
            process = Worker(world, at, variables | doomed.get(pod, {}))
            process.life = self.life
            self.processes.append(process)


    def directory(self, world, pod):
        """The directory of this life in a pod."""
        return world.dir / f"{self.life}-{pod}"

    def report_end_of_life(self, world, pod):
        """Does what the agent of a pod does when the replica is lost."""
        (self.directory(world, pod) / "over").touch()


class LargeWorld(ReplicaWorld):
    """A job of replicas of pods with one process each."""

    # Whether the processes keep copies of the state in volumes of their pods.
    has_copies = False

    def volume(self, replica, pod):
        """The directory of copies of the pod with this place."""
        return self.dir / f"copies-{replica}-{pod}"

    def address_of(self, index):
        pid = os.getpid()
        return f"127.{80 + pid % 100}.{pid // 100 % 250}.{index}"

    def life_of(self, worker):
        return worker.life

    def place_of(self, worker, members):
        return {"nodeRank": members.index(worker), "nodes": len(members), "procsPerWorker": 1}

    def start_replica(self, index, doomed=None):
        replica = LargeReplica(self, index, self.size, doomed or {})
        self.all.extend(replica.processes)
        return replica


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The weights of scripts/sharded.py after training in one process."""
    directory = tmp_path_factory.mktemp("alone")
    with ReplicaWorld(directory, "sharded.py", STEPS, directory / "weights", size=1) as world:
        world.end_replicas(world.begin_replicas(1))
    return load(directory / "weights")


def test_replicas_of_two_pods_train_to_the_weights_of_one_process(tmp_path, alone):
    with LargeWorld(tmp_path, "sharded.py", STEPS, tmp_path / "weights") as world:
        world.end_replicas(world.begin_replicas(2))
    assert difference(alone, load(tmp_path / "weights")) <= ROUNDING


@pytest.mark.parametrize("pod", [0, 1])
def test_killed_pod_costs_its_replica_and_no_step(tmp_path, alone, pod):
    with LargeWorld(tmp_path, "sharded.py", STEPS, tmp_path / "weights") as world:
        world.slow(50)
        lost, other = world.begin_replicas(2)
        world.reach_replicas([other], 6)
        lost.processes[pod].kill(signal.SIGKILL)
        sibling = lost.processes[1 - pod]
        until("the other pod ends its process", sibling.is_gone)
        assert sibling.process.returncode == 75
        world.publish([other])
        world.reach_replicas([other], 9)
        again = [other, world.start_replica(0)]
        with world.steps_held():
            world.form_replicas(again)
        world.end_replicas(again)
    assert difference(alone, load(tmp_path / "weights")) <= ROUNDING


# A process dies, or its host does not answer until a spare takes its place.
@pytest.mark.parametrize("fault", ["ROUNDHOUSE_FAULT", "ROUNDHOUSE_FAULT_FREEZE"])
def test_script_continues_from_parts_of_two_replicas(tmp_path, alone, fault):
    with LargeWorld(tmp_path, "sharded.py", STEPS, tmp_path / "weights", checkpoints=True, every_steps=1000) as world:
        world.has_copies = True
        # Both die at the beginning of the same step, as ranks 0 and 3.
        replicas = [world.start_replica(index, {pod: {fault: f"{rank}:7:Forward"}}) for index, pod, rank in ((0, 0, 0), (1, 1, 3))]
        world.form_replicas(replicas)
        first, second = replicas
        left = [first.processes[1], second.processes[0]]
        if fault.endswith("FREEZE"):
            for process in (first.processes[0], second.processes[1]):
                until("a process is stopped", process.is_stopped)
            first.report_end_of_life(world, 1)
            second.report_end_of_life(world, 0)
        for process in left:
            until("a process of a torn replica ends", process.is_gone)
            assert process.process.returncode == 75
        saved = [file.name for pod in ((0, 1), (1, 0)) for file in world.volume(*pod).glob("shard-*/*")]
        assert saved == ["gen-0000000001-step-000000000006"] * 2
        # The pod that is left of the second replica takes the place of the lost one of the first.
        shutil.move(world.volume(1, 0), world.volume(0, 0))
        again = world.start_replica(0)
        world.form_replicas([again])
        world.end_replicas([again])
        lines = again.processes[0].log.read_text().splitlines()
        assert next(line for line in lines if re.match(r"step \d+: ", line)).startswith("step 7: ")
    assert difference(alone, load(tmp_path / "weights")) <= ROUNDING


def test_step_counts_that_one_process_knows_to_be_committed(tmp_path, alone):
    with LargeWorld(tmp_path, "sharded.py", STEPS, tmp_path / "weights", checkpoints=True, every_steps=1000) as world:
        world.has_copies = True
        replica = world.start_replica(0, {1: {"MISSES_OUTCOME": "7"}})
        world.form_replicas([replica])
        for process in replica.processes:
            until("a process of the torn replica ends", process.is_gone)
            assert process.process.returncode == 75
        saved = [{file.name for file in world.volume(0, pod).glob("shard-*/*")} for pod in (0, 1)]
        before, after = (f"gen-0000000001-step-00000000000{step}" for step in (6, 7))
        assert saved == [{after}, {before, after}]
        again = world.start_replica(0)
        world.form_replicas([again])
        world.end_replicas([again])
        lines = again.processes[0].log.read_text().splitlines()
        assert next(line for line in lines if re.match(r"step \d+: ", line)).startswith("step 8: ")
    assert difference(alone, load(tmp_path / "weights")) <= ROUNDING


# In the rest of a body, after an evaluation with `then`, and after the loop.
@pytest.mark.parametrize("point, last", [("commit 5", 5), ("then 4", 4), ("end", STEPS)])
def test_part_is_not_saved_while_the_script_may_change_the_state(tmp_path, point, last):
    options = {"checkpoints": True, "every_steps": 1000, "variables": {"DIES": point, "EVALUATE": "4"}}
    with LargeWorld(tmp_path, "sharded.py", STEPS, tmp_path / "weights", **options) as world:
        world.has_copies = True
        (replica,) = world.begin_replicas(1)
        left = replica.processes[1]
        until("the other process ends", left.is_gone)
        assert left.process.returncode == 75
        steps = re.findall(r"^step (\d+): ", left.log.read_text(), re.MULTILINE)
        assert int(steps[-1]) == last
        assert list(world.volume(0, 1).glob("shard-*/*")) == []
