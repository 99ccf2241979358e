"""Callbacks of transformers that work on rank 0 alone: progress bars, and reports to W&B and other
services."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any


def name_run(run_id: str) -> None:
    """Lets W&B continue one run for the whole job, unless the script or its job has set another."""
    if "WANDB_RUN_ID" not in os.environ:
        os.environ["WANDB_RUN_ID"] = run_id
        os.environ.setdefault("WANDB_RESUME", "allow")


def restart_trackers(callbacks: Iterable[Any]) -> None:
    """Lets trackers set themselves up again with their next log, when this process becomes rank 0.
    They have noted that they are set up, but on other ranks they have opened no run."""
    for callback in callbacks:
        of_library = any(kind.__module__.startswith("transformers.integrations") for kind in type(callback).__mro__)
        if of_library and hasattr(callback, "_initialized"):
            callback._initialized = False


def begin_bars(callbacks: Iterable[Any], args: Any, state: Any, control: Any) -> None:
    """Begins the progress bar of the training when this process becomes rank 0. Other ranks have
    none."""
    for callback in callbacks:
        if getattr(callback, "training_bar", callback) is None:
            callback.on_train_begin(args, state, control)
