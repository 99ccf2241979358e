"""Joins the job, which a worker can do once."""

from __future__ import annotations

from typing import Any

from ..errors import AlreadyJoined, ConfigError
from ..job import Job
from ..joining import join


def join_once(state: dict[str, Any], options: dict[str, Any], advice: str) -> Job:
    """``rh.join`` for the only training of a worker. Alone a process may train again. ``advice``:
    the message for a second training, in the words of the library."""
    try:
        return join(state, **options)
    except AlreadyJoined as error:
        raise ConfigError(advice) from error
