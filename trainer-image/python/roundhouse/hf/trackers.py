"""Callbacks of transformers that report to W&B and other services."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def restart_trackers(callbacks: Iterable[Any]) -> None:
    """Lets trackers set themselves up again with their next log, when this process becomes rank 0.
    They have noted that they are set up, but on other ranks they have opened no run."""
    for callback in callbacks:
        of_library = any(kind.__module__.startswith("transformers.integrations") for kind in type(callback).__mro__)
        if of_library and hasattr(callback, "_initialized"):
            callback._initialized = False
