"""``rh.join``: the device, other launchers, notebooks, and settings of the agent."""

import os
import subprocess
import sys
import warnings

import pytest
import roundhouse as rh
import torch
from roundhouse import _native, joining
from small_script import train
from world import World


def test_device_is_that_of_the_first_module(parts):
    number, module = torch.zeros(2), torch.nn.Linear(2, 2, device="meta")
    norm = torch.nn.BatchNorm1d(2, affine=False, device="meta")
    for state, device in [
        ({"best": number, "model": module}, "meta"),
        ({"best": number, "loss": torch.nn.ReLU(), "norm": norm}, "meta"),
        ({"model": parts.body, "other": module}, "cpu"),
        ({"loss": torch.nn.ReLU(), "best": torch.zeros(2, device="meta"), "other": number}, "meta"),
        ({"opt": parts.first}, "cpu"),
    ]:
        assert joining._device_of(state).type == device


def test_process_of_another_launcher_is_refused(parts, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    words = "rh.join under torchrun .*WORLD_SIZE=2.*`kubectl roundhouse run --local.*`env -u WORLD_SIZE"
    with pytest.raises(rh.ConfigError, match=words):
        rh.join(state=parts.state())
    # In restart mode the agent sets both variables, and the message names that mode.
    monkeypatch.setenv("ROUNDHOUSE_GENERATION", "1")
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with pytest.raises(rh.ConfigError, match="set elastic.mode: InProcess"):
        rh.join(state=parts.state())
    monkeypatch.delenv("ROUNDHOUSE_GENERATION")
    # WORLD_SIZE alone does not mean a launcher, because a container may set it.
    for alone, rank in (("1", "0"), ("", "0"), ("²", "0"), ("2", None)):
        monkeypatch.setenv("WORLD_SIZE", alone)
        if rank is None:
            monkeypatch.delenv("RANK")
        train(parts, lambda job, loss: job.commit(loss, parts.both))


def test_second_join_in_a_notebook_gets_advice():
    source = """
import torch, roundhouse as rh
for _ in range(2):
    job = rh.join(state={"model": torch.nn.Linear(1, 1)})
"""
    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 1, ended.stderr
    assert "AlreadyJoined: rh.join was called twice" in ended.stderr and "restart the kernel" in ended.stderr, ended.stderr


def test_gpu_worker_without_agent_settings_gets_a_warning(monkeypatch):
    process = _native.Process.start()
    names = process.missing_settings()
    assert "TORCH_NCCL_ASYNC_ERROR_HANDLING" in names and "NCCL_RUNTIME_CONNECT" in names
    gpu = torch.device("cuda", 0)

    class Worker:
        has_agent = True
        missing_settings = process.missing_settings

    with pytest.warns(UserWarning, match="TORCH_NCCL_ASYNC_ERROR_HANDLING, .* are not set, which the agent of a worker sets"):
        joining._check_settings(Worker, gpu)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        joining._check_settings(Worker, torch.device("cpu"))
        joining._check_settings(process, gpu)
        for name in names:
            monkeypatch.setenv(name, "1")
        joining._check_settings(Worker, gpu)


def test_run_id_is_the_uid_of_the_job(tmp_path):
    script = tmp_path / "script.py"
    lines = ["import roundhouse as rh, torch", "with rh.join({'model': torch.nn.Linear(1, 1)}) as job:", "    print('run', job.run_id)"]
    script.write_text("\n".join(lines))
    with World(tmp_path, script) as world:
        workers = [world.start(0), world.start(1), world.start(2, ROUNDHOUSE_JOB_UID="")]
        # The script has no loop.
        world.ends(workers, 64)
        assert all("run 0c9f1e5a\n" in worker.log.read_text() for worker in workers[:2])
        assert "job.run_id: ROUNDHOUSE_JOB_UID is not set" in workers[2].words()["message"]


def test_each_start_of_a_process_alone_has_a_run_id(parts):
    ids = []
    for _ in range(2):
        train(parts, lambda job, loss: job.commit(loss, parts.both) and ids.append(job.run_id))
    assert len(ids) == 4 and ids[0] == ids[1] != ids[2] == ids[3]


def test_process_uses_the_cores_that_it_may_use(parts):
    may_use = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(may_use)})
    try:
        process = _native.Process.start()
        assert process.num_threads() == int(os.environ.get("OMP_NUM_THREADS") or 1)
    finally:
        os.sched_setaffinity(0, may_use)
