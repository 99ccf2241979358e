"""The recipes of docs/guides/trackers.md when rank 0 is killed, and when all ranks are: one run has
each step once."""

import json
import struct

import pytest
from conftest import HERE
from world import World, until

STEPS = 30
JOB = "0c9f1e5a-6c1d-4a51-9a58-3f1f6a2f1a11"


def of_mlflow(address, directory):
    """The losses of the runs on an MLflow server: pairs of step and loss for each run."""
    import mlflow

    client = mlflow.MlflowClient(address)
    experiment = client.get_experiment_by_name("digits")
    runs = client.search_runs([experiment.experiment_id], f"tags.job = '{job_of(directory)}'")
    return [[(point.step, point.value) for point in client.get_metric_history(run.info.run_id, "loss")] for run in runs]


def of_wandb(address, directory):
    """The losses of the runs in W&B's offline files, by the id of the run."""
    from wandb.proto import wandb_internal_pb2

    runs = {}
    for file in sorted((directory / "wandb").glob("offline-run-*/*.wandb")):
        for data in records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("run"):
                points = runs.setdefault(record.run.run_id, [])
            if record.HasField("history"):
                values = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                points.append((values["_step"], values["loss"]))
    assert list(runs) == [job_of(directory)]
    return list(runs.values())


def records(data):
    """The records of a file of W&B: 7 bytes, and then a log of LevelDB in blocks of 32 KiB, whose
    fragments have a checksum, a length and a kind (whole, first, middle, last)."""
    at, begun = 7, b""
    while at + 7 <= len(data):
        if (rest := 32768 - at % 32768) < 7:
            at += rest
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        begun += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield begun
            begun = b""


def of_tensorboard(address, directory):
    """The losses that TensorBoard shows, for each directory of a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    runs = []
    for run in (directory / "logs").iterdir():
        assert run.name == job_of(directory)
        shown = EventAccumulator(str(run), size_guidance={"scalars": 0})
        shown.Reload()
        runs.append([(point.step, point.value) for point in shown.Scalars("loss")])
    return runs


TRACKERS = {"MLflow": of_mlflow, "W&B": of_wandb, "TensorBoard": of_tensorboard}


def job_of(directory):
    """The UID of the job of a test: jobs share the server."""
    return f"{JOB}-{directory.name}"


class Reporting:
    """A job that reports to a tracker."""

    def __init__(self, tracker, directory, address, **options):
        self.tracker, self.directory, self.address = tracker, directory, address
        variables = {
            "ROUNDHOUSE_JOB_UID": job_of(directory),
            "MLFLOW_TRACKING_URI": address or "",
            "WANDB_MODE": "offline",
            "WANDB_DIR": str(directory),
            # The default is 15 s, and a killed process loses the steps since then.
            "WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL": "0.05",
            "LOGS": str(directory / "logs"),
        }
        self.world = World(directory, HERE / "scripts" / "report.py", STEPS, tracker, variables=variables, **options)

    def losses(self):
        """The losses by step of the only run, which has each step once."""
        runs = TRACKERS[self.tracker](self.address, self.directory)
        assert len(runs) == 1, runs
        assert sorted(step for step, _ in runs[0]) == list(range(1, STEPS + 1))
        return dict(runs[0])


@pytest.fixture
def reporting(tmp_path, request):
    """``reporting("MLflow")``: only jobs of MLflow need its server."""

    def job(tracker, **options):
        address = request.getfixturevalue("mlflow_server") if tracker == "MLflow" else None
        return Reporting(tracker, tmp_path, address, **options)

    return job


@pytest.mark.parametrize("tracker", TRACKERS)
def test_next_rank_0_continues_the_run(reporting, tracker):
    job = reporting(tracker)
    with job.world as world:
        # Rank 0 writes its numbers before it is killed.
        world.slow(500)
        workers = world.begin(3, fault="0:11:Backward")
        until("rank 0 is killed", workers[0].is_gone)
        world.slow(0)
        world.form(workers[1:])
        world.ends(workers[1:])
    losses = job.losses()
    assert losses[1] > losses[STEPS] > 0


@pytest.mark.parametrize("tracker", ["MLflow", "TensorBoard"])
def test_restart_from_a_checkpoint_logs_no_step_twice(reporting, tracker):
    job = reporting(tracker, checkpoints=True, every_steps=8)
    with job.world as world:
        world.slow(50)
        died = world.start(0, DIES_AFTER="13")
        world.prepared([died])
        world.form([died])
        world.ends([died], 9)
        world.slow(0)
        again = world.begin(2)
        world.ends(again)
        assert "step 8 of generation 1" in again[0].log.read_text()
    job.losses()
