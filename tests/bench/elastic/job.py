"""The TrainingJobs. train.py trains the same with torchrun, and elastic_script.py with the Python
package."""

TRAINER = {
    "model": {"name": "mlp", "hidden": [32]},
    "data": {"format": "idx"},
    "optimizer": {"name": "sgd", "learningRate": 0.05, "momentum": 0.9},
    "globalBatchSize": 64,
    "steps": 10_000_000,
    "seed": 7,
    "eval": {"everyEpochs": 1_000_000},
}


def job(workers, volume):
    """A TrainingJob of the built-in trainer. `volume` is the nodes' directory of its
    checkpoints."""
    return _of(workers, volume, {"trainer": TRAINER})


def joining(workers, volume, command, sharded_over=1):
    """A TrainingJob of a command that joins with the Python package. The caller sets
    `PYTHONPATH`. `sharded_over`: number of processes of a worker, which share the model."""
    threads = [{"name": "OMP_NUM_THREADS", "value": "1"}]
    container = {"name": "trainer", "image": "localhost/script:1", "command": command, "env": threads}
    manifest = _of(workers, volume, {"elastic": {"mode": "InProcess"}})
    if sharded_over > 1:
        manifest["spec"]["workers"] |= {"sharded": True, "procsPerWorker": sharded_over}
    manifest["spec"]["workers"]["template"] = {"spec": {"containers": [container]}}
    return manifest


def _of(workers, volume, program):
    return {
        "apiVersion": "roundhouse.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "digits"},
        "spec": {
            "workers": {"replicas": workers, "minReplicas": 2},
            "checkpoint": {"volume": {"hostPath": {"path": str(volume)}}, "everySteps": 50},
            **program,
        },
    }
