"""How a script of Hugging Face's libraries joins its job, once."""

from __future__ import annotations

import warnings
from typing import Any

from ..integration import joining
from ..job import Job


def join_once(state: dict[str, Any], options: dict[str, Any]) -> Job:
    """``rh.join`` for the only training of a worker."""
    advice = (
        "roundhouse.hf: a second train() or accelerator.prepare in this process: a job is one training; start a job for each, or "
        "train with one Trainer and one call of train()"
    )
    return joining.join_once(state, options, advice)


def warn_of_no_step(options: dict[str, Any]) -> None:
    """Warns that a process alone trains nothing, because its checkpoint is that of a complete
    training."""
    warnings.warn(
        f"roundhouse.hf: no step is left to train: the training in checkpoint_dir {options.get('checkpoint_dir')!r} is complete; give "
        "another directory, or more steps",
        stacklevel=2,
    )
