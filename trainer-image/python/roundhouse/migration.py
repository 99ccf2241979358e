"""Detects code for plain DDP that needs a change here. It is reported at once and not retried."""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import Any

from ._native import fail_early
from .errors import ConfigError, RoundhouseError

_MEMBERSHIP = "ROUNDHOUSE_MEMBERSHIP_FILE"
# Prefixes of error messages of PyTorch.
_NO_GROUP = "Default process group has not been initialized"
# Errors for a group, or the name of a group, that is not of the current generation.
_NOT_OF_NOW = (
    "is not initialized in the world group map",
    "is not registered, please create group with torch.distributed.new_group",
    "Could not resolve the process group registered under the name",
)
# The error of an exchange without lengths in PyTorch 2.11: ncclInProgress of a non-blocking
# communicator.
_IN_PROGRESS = "NCCL Error 7"
_NO_RANK = "Error initializing torch.distributed using env://"
# The class of the error of a pipeline for a micro-batch of another shape than the first one.
_OTHER_SHAPE = "PipeliningShapeError"
_ONE_SAMPLE = "Expected more than 1 value per channel when training"


def recognized(error: BaseException | None) -> str | None:
    """Advice for an error of PyTorch that is typical for a script written for another launcher;
    None for other errors."""
    if not isinstance(error, (ValueError, RuntimeError)):
        return None
    words = str(error)
    if type(error).__name__ == _OTHER_SHAPE:
        return (
            f"{words}: a PipelineStage keeps the shapes of its first micro-batch: give all micro-batches of a step one size, and make the "
            "stage again when the share of this replica has changed; see 'Pipelines' in docs/guides/sharded-models.md"
        )
    if _is_of_older_generation(words):
        return (
            "the script uses a process group or a DeviceMesh of an earlier generation, which is over: each generation has other "
            "ranks; make it in job.on_generation(callback), which runs in each generation, and keep no reference to job.group"
        )
    if words.startswith(_IN_PROGRESS):
        return (
            f"{words}: give dist.all_to_all_single the lengths over NCCL, input_split_sizes and output_split_sizes; without them "
            "PyTorch takes an operation in progress for an error"
        )
    if words.startswith(_NO_GROUP):
        return (
            "torch.distributed has no process group yet: the job makes one for each generation of several processes, from the "
            "beginning of the loop over job.steps on; use it there or in job.on_generation, and not if job.group is None; for what "
            "one process does before the loop see 'One process prepares the data' in docs/guides/python-recipes.md"
        )
    if words.startswith(_NO_RANK):
        return (
            "init_process_group has no place in a script that joins: remove it, and destroy_process_group, too; the job makes a "
            "process group for each generation, from the beginning of the loop over job.steps on; for a sharded model call "
            "mesh = rh.replica_mesh() before, and give fully_shard the mesh; if a library calls it because the agent sets LOCAL_RANK, "
            "read LOCAL_RANK and delete it from os.environ before"
        )
    if words.startswith(_ONE_SAMPLE):
        return (
            f"{words}: a rank has one sample of a batch, or none and computes one that does not count; give job.sampler "
            "drop_last=True, or a global_batch_size that leaves each rank two samples, also in the last batch of an epoch"
        )
    return None


def is_without_group(error: BaseException) -> bool:
    """Whether an error of PyTorch means that the process group does not exist now."""
    words = str(error)
    is_default = isinstance(error, ValueError) and words.startswith(_NO_GROUP)
    return is_default or (isinstance(error, (ValueError, RuntimeError)) and _is_of_older_generation(words))


def _is_of_older_generation(words: str) -> bool:
    return any(part in words for part in _NOT_OF_NOW)


def words_of_second_run() -> str:
    """The message for a process whose child has run the script again."""
    return (
        "a process that loads samples has run the whole script again: with the start method spawn or forkserver the training "
        'has to stand in `if __name__ == "__main__":`'
    )


def check_is_no_child() -> None:
    """Refuses a child of a worker's process: it has the worker's environment and would join in its
    place.

    Raises :class:`~roundhouse.errors.ConfigError`.
    """
    is_starting = getattr(multiprocessing.current_process(), "_inheriting", False)
    if is_starting or (os.environ.get(_MEMBERSHIP) and multiprocessing.parent_process() is not None):
        sys.excepthook = _exit_as_config_error
        raise ConfigError(
            "rh.join in a child process that multiprocessing has started: the process that the job has started joins, and its "
            'children do not; put the training into `if __name__ == "__main__":`'
        )


def _exit_as_config_error(kind: type[BaseException], error: BaseException, where: Any) -> None:
    sys.__excepthook__(kind, error, where)
    sys.stderr.flush()
    os._exit(ConfigError.exit_code)


def _before_join(kind: type[BaseException], error: BaseException, where: Any) -> None:
    words, code = recognized(error), ConfigError.exit_code
    if words is None and isinstance(error, RoundhouseError):
        words, code = str(error), error.exit_code
    sys.__excepthook__(kind, error, where)
    if words is not None:
        fail_early(code, words)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def watch_beginning() -> None:
    """In a worker of a job, detected errors end the job also before ``rh.join``, which sets its own
    hook."""
    if os.environ.get(_MEMBERSHIP) and multiprocessing.parent_process() is None and sys.excepthook is sys.__excepthook__:
        sys.excepthook = _before_join
