"""Features of scripts in a job of several ranks, of which one is killed."""

import os
import pathlib
import re
import subprocess

import pytest
from conftest import ROUNDING, STEPS, difference, load
from world import World, until


def test_stream_yields_each_sample_once_despite_a_kill(tmp_path):
    weights = []
    for num_workers in [1, 3]:
        directory = tmp_path / str(num_workers)
        directory.mkdir()
        variables = {"STREAM": "1", "LOADERS": "1"}
        with World(directory, "train.py", STEPS, directory / "weights", variables=variables) as world:
            workers = world.begin(num_workers, fault="2:31:Agree" if num_workers > 1 else None)
            if num_workers > 1:
                until("the rank is killed", workers[2].is_gone)
                workers = workers[:2]
                world.form(workers)
            world.ends(workers)
        weights.append(load(directory / "weights"))
    assert difference(*weights) <= ROUNDING


def test_buffers_are_those_of_rank_0_and_the_last_commit(tmp_path):
    found = []
    for fault in (None, "1:31:Agree"):
        directory = tmp_path / str(fault)
        directory.mkdir()
        with World(directory, "train.py", STEPS, directory / "weights", variables={"NORM": "1"}) as world:
            workers = world.begin(2, fault=fault)
            if fault is not None:
                until("the rank is killed", workers[1].is_gone)
                again = world.start(1)
                world.prepared([again])
                workers[1] = again
                world.form(workers)
            world.ends(workers)
        found.append(load(directory / "weights"))
    assert difference(*found) <= ROUNDING


def test_noise_of_an_optimizer_is_the_same_on_all_ranks(tmp_path):
    found = []
    for num_workers in (1, 2):
        directory = tmp_path / str(num_workers)
        directory.mkdir()
        with World(directory, "train.py", 20, directory / "weights", variables={"NOISE": "1", "DOUBLE": "1"}) as world:
            world.ends(world.begin(num_workers))
        found.append(load(directory / "weights"))
    assert difference(*found) <= ROUNDING


@pytest.mark.parametrize("loaders", [0, 2])
def test_loader_workers_survive_a_generation(tmp_path, undisturbed, loaders):
    variables = {"LOADERS": str(loaders)}
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights", variables=variables) as world:
        workers = world.begin(3, fault="2:31:Backward")
        until("the rank is killed", workers[2].is_gone)
        world.form(workers[:2])
        world.ends(workers[:2])
        for worker in workers[:2]:
            started = [line for line in worker.log.read_text().splitlines() if line.startswith("process that loads: ")]
            assert len(started) == len(set(started)) == loaders, started
    assert difference(undisturbed(STEPS), load(tmp_path / "weights")) <= ROUNDING


@pytest.mark.parametrize("how", ["in place", "in parts", "beside"])
def test_new_generation_does_not_recompile_a_model(tmp_path, how):
    def compiled(worker):
        """How often the worker had compiled at the end of each generation."""
        lines = re.findall(r"of generation (\d+): compiled (\d+) times", worker.log.read_text())
        return {int(generation): int(number) for generation, number in lines}

    with World(tmp_path, "compiled.py", STEPS, tmp_path / "weights", variables={"HOW": how}) as world:
        world.slow(100)
        workers = world.begin(2)
        world.reach(workers, 3)
        # The same ranks; then one of them with twice the samples; then both again.
        world.form(workers)
        world.reach(workers, 8)
        workers[1].kill()
        until("the rank is killed", workers[1].is_gone)
        world.form(workers[:1])
        world.reach(workers[:1], 13)
        with world.steps_held(then=100):
            workers[1] = world.start(1)
            world.prepared([workers[1]])
            world.form(workers)
        world.reach(workers, 18)
        world.slow(0)
        world.ends(workers)
        first, second, third, fourth = (compiled(workers[0])[generation] for generation in (1, 2, 3, 4))
    assert first == second > 0 and third == fourth > second, (first, second, third, fourth)


@pytest.mark.parametrize(
    ("uses", "workers", "killed", "at"),
    [
        # In the second step of a generation the first pass exchanges the packing of gradients.
        ("accumulate-clip", 3, 0, "2:Forward"),
        ("sum-accumulate", 2, 1, "31:Backward"),
        ("scaler-unscale-collective", 3, 1, "31:Collective"),
        ("scaler-clip-alternate-apart", 2, 1, "31:Agree"),
        ("small-frozen", 3, 1, "31:Backward"),
        # One of the two optimizers has no gradients.
        ("scaler-frozen-clip", 2, 1, "31:Backward"),
        ("manual-clip", 2, 1, "31:Collective"),
        # Every third step leaves out a layer, for example the step in which the rank is killed and
        # the next one.
        ("unused", 3, 1, "33:Backward"),
        ("unused-accumulate", 2, 0, "32:Agree"),
        ("static-clip", 3, 1, "31:Backward"),
        ("rate", 2, 1, "31:Agree"),
        ("autocast-scaler-clip", 3, 2, "31:Backward"),
    ],
)
def test_features_train_to_the_same_weights_despite_a_kill(tmp_path, uses, workers, killed, at):
    step, point = at.split(":")
    fault = {"KILL_AT": step} if point == "Collective" else {"ROUNDHOUSE_FAULT": f"{killed}:{at}"}
    directories = [tmp_path / "single", tmp_path / "world"]
    for directory in directories:
        directory.mkdir()
    single, world = (World(directory, "exact.py", STEPS, directory / "weights", uses) for directory in directories)
    with single, world:
        alone = single.begin(1)
        ranks = [world.start(index, **(fault if index == killed else {})) for index in range(workers)]
        world.prepared(ranks)
        world.form(ranks)
        until("the rank is killed", ranks[killed].is_gone)
        others = [rank for rank in ranks if rank is not ranks[killed]]
        world.form(others)
        world.ends(alone + others)
    # Sums in half precision depend on the order of the samples.
    tolerance = 0.01 if "autocast" in uses else ROUNDING
    assert difference(*(load(directory / "weights") for directory in directories)) <= tolerance


def with_limit(directory, cores):
    """A command that runs another command as under a cgroup limit, by replacing files of the
    kernel."""
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            place = directory / path.strip("/")
            limits = {"cgroup.controllers": "cpu", "cpu.max": f"{cores * 100000} 100000"}
        elif "cpu" in controllers.split(","):
            place = directory / "cpu" / path.strip("/")
            limits = {"cpu.cfs_quota_us": str(cores * 100000), "cpu.cfs_period_us": "100000"}
        else:
            continue
        place.mkdir(parents=True, exist_ok=True)
        for name, value in limits.items():
            (place / name).write_text(f"{value}\n")
    return ["unshare", "-rm", "sh", "-c", 'mount --bind "$0" /sys/fs/cgroup && exec "$@"', str(directory)]


def test_number_of_threads_is_that_of_the_cgroup(tmp_path):
    limit = with_limit(tmp_path / "cgroup", 1)
    if subprocess.run([*limit, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine does not allow namespaces")
    seen = []
    for command in ([], limit):
        directory = tmp_path / str(len(seen))
        directory.mkdir()
        with World(directory, "train.py", 2, directory / "weights", variables={"OMP_NUM_THREADS": ""}) as world:
            world.starter, world.command = None, [*command, *world.command]
            workers = world.begin(1)
            world.ends(workers)
            seen.append(int(re.search(r"threads that compute: (\d+)", workers[0].log.read_text())[1]))
    # The machine that runs the tests may itself have a limit.
    assert 1 <= seen[0] <= len(os.sched_getaffinity(0)) and seen[1] == 1, seen
