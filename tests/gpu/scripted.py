"""The cases of scripts that join with the Python package. Each case returns its result as text."""
import itertools
import pathlib
import re
import signal
import subprocess
import sys
import time

import world
from replicas import ReplicaWorld
from world import World, until

STEPS = 60
# The allowed difference of weights. Adam amplifies the rounding of 32-bit sums in another order.
TOLERANCE = 1e-5
SCRIPTS = pathlib.Path(__file__).parent / "scripts"


class Setting:
    """The machine of the cases. `variables(index)` returns the environment of a worker's
    process."""

    def __init__(self, place, device, variables, seconds):
        self.place, self.device, self.variables, self.seconds = place, device, variables, seconds
        self._numbers = itertools.count()
        self._alone = {}

    def directory(self):
        directory = self.place / f"job-{next(self._numbers)}"
        directory.mkdir()
        return directory

    def ranks(self, script, *arguments, **variables):
        return Ranks(self, self.directory(), script, *arguments, variables={"DEVICE": self.device, **variables})

    def replicas(self, **variables):
        return Replicas(self, self.directory(), variables={"DEVICE": self.device, **variables})

    def alone(self, script, *arguments):
        """The weights of the same training with one rank."""
        key = (script, *arguments)
        if key not in self._alone:
            self._alone[key] = trained(self, 1, script, *arguments)
        return self._alone[key]


class Ranks(World):
    """Workers with one process each on this machine's device."""

    def __init__(self, setting, directory, script, *arguments, **options):
        super().__init__(directory, script, STEPS, directory / "weights", *arguments, **options)
        self.setting = setting

    def start(self, index, **variables):
        return super().start(index, **self.setting.variables(index), **variables)

    def weights(self):
        return loaded(self.dir)

    def lose(self, workers, lost, step):
        """Forms a generation without a lost rank. Returns its workers, and the seconds until they
        have committed a step."""
        others = [worker for worker in workers if worker is not lost]
        started = time.monotonic()
        self.form(others, others_leave=False)
        self.reach(others, step)
        return others, time.monotonic() - started


class Replicas(ReplicaWorld):
    """Workers of two processes, which share a copy of the model with FSDP2 on this machine's
    device."""

    def __init__(self, setting, directory, **options):
        super().__init__(directory, "sharded.py", STEPS, directory / "weights", **options)
        self.setting = setting

    def start_replica(self, index, doomed=None):
        # For NCCL each process is on another host, those of one replica, too.
        own = {rank: self.setting.variables(index * self.size + rank) for rank in range(self.size)}
        return super().start_replica(index, {rank: {**own[rank], **(doomed or {}).get(rank, {})} for rank in own})

    def weights(self):
        return loaded(self.dir)


def loaded(directory):
    from safetensors.torch import load_file

    return load_file(directory / "weights")


def apart(mine, theirs):
    largest = max(float(tensor.abs().max()) for tensor in theirs.values())
    return max(float((mine[name] - theirs[name]).abs().max()) for name in theirs) / largest


def same(mine, theirs):
    found = apart(mine, theirs)
    assert found <= TOLERANCE, f"weights differ by {found:.1e}"
    return f"weights differ by {found:.1e}"


def trained(setting, size, script, *arguments):
    with setting.ranks(script, *arguments) as ranks:
        ranks.ends(ranks.begin(size))
        return ranks.weights()


def sizes(setting, size):
    return same(trained(setting, size, "train.py"), setting.alone("train.py"))


def killed(setting, rank, point):
    with setting.ranks("train.py") as ranks:
        ranks.slow(20)
        workers = ranks.begin(3, fault=f"{rank}:31:{point}")
        until("the rank is killed", workers[rank].is_gone)
        others, seconds = ranks.lose(workers, workers[rank], 32)
        ranks.slow(0)
        ranks.ends(others)
        return f"next step after {seconds:.1f} s, {same(ranks.weights(), setting.alone('train.py'))}"


def stopped(setting):
    with setting.ranks("train.py") as ranks:
        ranks.slow(200)
        workers = ranks.begin(3)
        ranks.reach(workers, 5)
        workers[2].kill(signal.SIGSTOP)
        _, seconds = ranks.lose(workers, workers[2], max(map(ranks.step, workers)) + 2)
        assert seconds < 10, f"the others needed {seconds:.1f} s"
        workers[2].kill(signal.SIGCONT)
        ranks.form(workers)
        ranks.reach(workers, 15)
        ranks.slow(0)
        ranks.ends(workers)
        return f"next step of the others after {seconds:.1f} s, {same(ranks.weights(), setting.alone('train.py'))}"


def grows(setting):
    with setting.ranks("train.py") as ranks:
        ranks.slow(100)
        more = [ranks.start(1), ranks.start(2)]
        ranks.prepared(more)
        first = ranks.begin(1)
        ranks.reach(first, 5)
        started = time.monotonic()
        ranks.form(first + more)
        ranks.reach(more, 10)
        seconds = time.monotonic() - started
        ranks.slow(0)
        ranks.ends(first + more)
        return f"five steps of three ranks after {seconds:.1f} s, {same(ranks.weights(), setting.alone('train.py'))}"


def parts(setting):
    with setting.ranks("parts.py") as ranks:
        workers = ranks.begin(3, fault="1:31:Forward")
        until("the rank is killed", workers[1].is_gone)
        others, seconds = ranks.lose(workers, workers[1], 32)
        ranks.ends(others)
        return f"objects and tensors in a group of the script, next step after {seconds:.1f} s"


def scaler(setting):
    """Step 7 has a gradient that is not finite, and all ranks skip it."""
    return same(trained(setting, 2, "exact.py", "scaler-clip"), setting.alone("exact.py", "scaler-clip"))


def differ(setting):
    """One bit of a summed gradient of rank 1 is flipped, and no rank commits the step."""
    with setting.ranks("train.py", CUT_OFF_AT="1:1:31") as ranks:
        workers = ranks.begin(2)
        for worker in workers:
            until("the generation is lost", lambda worker=worker: worker.status().get("phase") == "Stranded")
            assert ranks.step(worker) == 30, ranks.step(worker)
        ranks.form(workers)
        ranks.ends(workers)
        return f"no rank has committed it, {same(ranks.weights(), setting.alone('train.py'))}"


def reads(setting):
    with setting.ranks(SCRIPTS / "reads.py") as ranks:
        ranks.command[2:] = ["8", setting.device]
        workers = ranks.begin(2)
        ranks.ends(workers)
        found = [int(number) for number in re.findall(r": (\d+) reads", workers[0].log.read_text())]
    # The first two steps create buffers and state for the later ones.
    assert len(found) == 8 and set(found[2:]) == {1}, found
    return "one for each step"


def sharded(setting):
    with setting.replicas() as replicas:
        replicas.end_replicas(replicas.begin_replicas(2))
        return same(replicas.weights(), setting.alone("sharded.py"))


def killed_in_replica(setting):
    """A process of one of two replicas is killed. The other replica continues, and a new process
    group per shard includes the replica that has started again."""
    with setting.replicas() as replicas:
        replicas.slow(20)
        both = replicas.begin_replicas(2, fault="3:31:Backward", doomed=(1, 1))
        replicas.lost(both[1])
        started = time.monotonic()
        replicas.publish(both[:1])
        replicas.reach_replicas(both[:1], 32)
        seconds = time.monotonic() - started
        replicas.slow(500)
        again = [both[0], replicas.start_replica(1)]
        replicas.form_replicas(again)
        replicas.reach_replicas(again, replicas.step(both[0].processes[0]) + 1)
        replicas.slow(0)
        replicas.end_replicas(again)
        return f"next step after {seconds:.1f} s, {same(replicas.weights(), setting.alone('sharded.py'))}"


def pace(setting):
    """Steps per second with the package and with DDP alone, in alternating runs."""
    found = {"elastic": [], "plain": []}
    for which in ["elastic", "plain"] * 2:
        with setting.ranks(SCRIPTS / "pace.py") as ranks:
            ranks.command[2:] = [which, setting.device, str(setting.seconds), str(world.free_port("127.0.0.1"))]
            if which == "elastic":
                workers = ranks.begin(1)
                ranks.ends(workers)
                output = workers[0].log.read_text()
            else:
                command = [sys.executable, *ranks.command[1:]]
                done = subprocess.run(command, env=setting.variables(0), capture_output=True, text=True, timeout=world.DEADLINE)
                output = done.stdout + done.stderr
        numbers = re.findall(r"^pace ([0-9.]+)", output, re.MULTILINE)
        assert numbers, output[-2000:]
        found[which].append(float(numbers[0]))
    ours, theirs = (max(found[which]) for which in ("elastic", "plain"))
    return f"{ours:.2f} steps/s, DDP alone {theirs:.2f}: {ours / theirs:.2f}"


CASES = {
    "two ranks": lambda setting: sizes(setting, 2),
    "three ranks": lambda setting: sizes(setting, 3),
    "killed in the backward pass": lambda setting: killed(setting, 1, "Backward"),
    "killed before the agreement": lambda setting: killed(setting, 0, "Agree"),
    "killed after the update": lambda setting: killed(setting, 2, "Commit"),
    "gradients that differ": differ,
    "a rank that is stopped": stopped,
    "one rank becomes three": grows,
    "a group of the script": parts,
    "a scaler": scaler,
    "two replicas of two": sharded,
    "a process of a replica is killed": killed_in_replica,
    "reads from the device in a commit": reads,
    "speed": pace,
}
SHORT = ["two ranks", "killed in the backward pass", "a scaler", "a process of a replica is killed", "reads from the device in a commit"]
