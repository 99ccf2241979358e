"""The job that all of ours run; train.py does the same for torchrun."""

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
    """A TrainingJob whose checkpoints go to that directory of the nodes."""
    return {
        "apiVersion": "roundhouse.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "digits"},
        "spec": {
            "workers": {"replicas": workers, "minReplicas": 2},
            "trainer": TRAINER,
            "checkpoint": {"volume": {"hostPath": {"path": str(volume)}}, "everySteps": 50},
        },
    }
