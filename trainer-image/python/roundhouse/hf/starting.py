"""How a process becomes a worker: once."""

from __future__ import annotations

import warnings
from typing import Any

from ..errors import AlreadyJoined, ConfigError
from ..job import Job
from ..joining import join


def join_once(state: dict[str, Any], options: dict[str, Any]) -> Job:
    """``rh.join`` for the only training of a worker. Alone a process may train again."""
    try:
        return join(state, **options)
    except AlreadyJoined as error:
        raise ConfigError(
            "roundhouse.hf: a second train() in this process: a job is one training; start a job for each, or train with one "
            "Trainer and one call of train()"
        ) from error


def warn_of_no_step(options: dict[str, Any]) -> None:
    """Warns that a process alone trains nothing, because its checkpoint is that of a complete
    training."""
    warnings.warn(
        f"roundhouse.hf: train() makes no step: the training in checkpoint_dir {options.get('checkpoint_dir')!r} is complete; give "
        "another directory, or more steps",
        stacklevel=2,
    )
