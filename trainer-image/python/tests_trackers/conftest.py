"""Fixtures. The processes of a job are those of the package's own tests, in ``tests``."""

import os
import pathlib
import signal
import subprocess
import sys
import urllib.request

import pytest

HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def starter():
    """Starts scripts in processes that have already imported PyTorch and the trackers."""
    from starter import starts_scripts

    yield from starts_scripts("mlflow", "torch.utils.tensorboard", "wandb")


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory):
    """The address of an MLflow server on this machine."""
    from world import free_port, until

    directory = tmp_path_factory.mktemp("mlflow")
    address = f"http://127.0.0.1:{free_port('127.0.0.1')}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", address.rsplit(":", 1)[1], "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{directory}/runs.db", "--default-artifact-root", str(directory / "artifacts")]
    with open(directory / "log", "wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=directory, start_new_session=True)

    def answers():
        assert server.poll() is None, (directory / "log").read_text()
        try:
            return urllib.request.urlopen(f"{address}/health", timeout=5).status == 200
        except OSError:
            return False

    try:
        until("the server answers", answers)
        yield address
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
