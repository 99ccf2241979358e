"""Elastic training of any PyTorch script on Kubernetes, in its process.

.. code-block:: python

    import roundhouse as rh

    with rh.join(state={"model": model, "opt": opt}) as job:
        sampler = job.sampler(len(dataset), global_batch_size=256, epochs=10, seed=1)
        for batch in job.steps(dataset, sampler, num_workers=4):
            loss = criterion(job.model(model)(batch.x), batch.y)
            loss.backward()
            job.commit(loss, opt)
        job.save_result("weights.safetensors")

Workers of a TrainingJob may die, leave and join meanwhile. The others continue in their processes
with the next generation, and every sample is used exactly once per epoch. Outside of a TrainingJob
the script trains alone, with a world size of 1.
"""

from .migration import watch_beginning
from .versions import OLDEST, require_torch

# First, because in a worker it reports the errors of all that follows.
watch_beginning()
require_torch(OLDEST, "roundhouse")

# ruff: noqa: E402
from ._native import VERSION as __version__
from .data import Batch
from .errors import (
    AlreadyJoined,
    ConfigError,
    DataError,
    DataMismatch,
    DeviceError,
    Diverged,
    Left,
    NotCommitted,
    PeerLost,
    RoundhouseError,
    StateError,
    VolumeError,
)
from .evaluation import Evaluation
from .job import Job
from .joining import join
from .launchers import hide_local_rank
from .replica import replica_mesh
from .sampler import Sampler, Step, steps_per_epoch

__all__ = [
    "AlreadyJoined",
    "Batch",
    "ConfigError",
    "DataError",
    "DataMismatch",
    "DeviceError",
    "Diverged",
    "Evaluation",
    "Job",
    "Left",
    "NotCommitted",
    "PeerLost",
    "RoundhouseError",
    "Sampler",
    "StateError",
    "Step",
    "VolumeError",
    "__version__",
    "join",
    "replica_mesh",
    "steps_per_epoch",
]

hide_local_rank()
