"""Joins the job, which a worker can do once."""

from __future__ import annotations

from typing import Any

from ..integration import joining
from ..job import Job


def join_once(state: dict[str, Any], options: dict[str, Any], call: str) -> Job:
    """``rh.join`` for the only training of a worker. ``call`` is the script's."""
    advice = f"roundhouse.lightning: a second {call} in this process: a job is one training; start a job for each, or train with one call"
    return joining.join_once(state, options, advice)
