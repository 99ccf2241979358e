"""Joins the job, which a worker can do once."""

from __future__ import annotations

from typing import Any

from ..errors import AlreadyJoined, ConfigError
from ..job import Job
from ..joining import join


def join_once(state: dict[str, Any], options: dict[str, Any], call: str) -> Job:
    """``rh.join`` for a training. Alone a process may train again. ``call`` is the script's."""
    try:
        return join(state, **options)
    except AlreadyJoined as error:
        raise ConfigError(
            f"roundhouse.lightning: a second {call} in this process: a job is one training; start a job for each, or train with one call"
        ) from error
