"""The scripts of examples/pytorch run as docs/guides/python-from-ddp.md describes."""

import os
import pathlib
import subprocess
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).parents[3]
EXAMPLES = REPOSITORY / "examples" / "pytorch"
ENDS = "of the test images are read right"


def said(directory, *command, **variables):
    """Runs a command, which must succeed, and returns its output."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_elastic_example_trains_in_one_process(tmp_path):
    assert ENDS in said(tmp_path, sys.executable, str(EXAMPLES / "elastic.py"))
    assert (tmp_path / "weights.safetensors").is_file()


def test_sharded_example_trains_in_one_process(tmp_path):
    assert ENDS in said(tmp_path, sys.executable, str(EXAMPLES / "fsdp.py"))
    assert (tmp_path / "weights.safetensors").is_file()


def test_torchrun_example_continues_from_its_checkpoint(tmp_path):
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", str(EXAMPLES / "restart.py")]
    assert "epoch 20 of 20" in said(tmp_path, *run)
    again = said(tmp_path, *run)
    assert ENDS in again and "epoch" not in again


@pytest.mark.skipif("ROUNDHOUSE_PROGRAMS" not in os.environ, reason="needs kubectl-roundhouse and roundhouse-agent")
@pytest.mark.parametrize("job", ["elastic.yaml", "fsdp.yaml"])
def test_job_of_the_example_trains_on_this_machine(tmp_path, job):
    programs = os.environ["ROUNDHOUSE_PROGRAMS"]
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    run = [f"{programs}/kubectl-roundhouse", "run", "--local", "-f", str(EXAMPLES / job), "--dir", str(tmp_path)]
    assert "Completed" in said(REPOSITORY, *run, PATH=path)
    assert (tmp_path / "state" / "weights.safetensors").is_file()
