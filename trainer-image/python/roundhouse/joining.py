"""``rh.join``, by which a process becomes a member of its job."""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from ._native import Process
from .allocator import keep_freed_memory
from .ending import exit_with, explained
from .errors import AlreadyJoined, ConfigError
from .job import Job
from .migration import check_is_no_child

# Whether this process is a member of a job, or was a worker of one.
_is_member = False


def join(
    state: dict[str, Any],
    *,
    device: torch.device | str | None = None,
    gradients: str = "ddp",
    seed_each_step: bool = True,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_every_steps: int | None = None,
    checkpoint_every_seconds: int | None = None,
    checkpoint_keep: int | None = None,
) -> Job:
    """Makes this process a member of its job. Use it as ``with rh.join(...) as job:``.

    ``state`` names the objects that new workers receive and that checkpoints contain: modules,
    optimizers, schedulers, tensors, and any object with ``state_dict`` and ``load_state_dict``. It
    must also contain everything that an optimizer trains. ``device``: the device of the modules;
    the default is that of the first module, or of the first tensor if there is no module.
    ``gradients="manual"``: the script sums its gradients itself, over ``job.group``.
    ``seed_each_step=False`` does not seed the random number generators; a repeated step then draws
    other numbers.

    In a worker of a TrainingJob all other settings come from the job. Outside of a job the process
    trains alone. ``checkpoint_dir`` is then the directory for checkpoints and the ledger (None: no
    checkpoints), ``checkpoint_every_steps`` and ``checkpoint_every_seconds`` set the interval, and
    ``checkpoint_keep`` is the number of checkpoints to keep.

    Raises :class:`~roundhouse.errors.StateError` for an entry that cannot be kept,
    :class:`~roundhouse.errors.ConfigError` under torchrun, and
    :class:`~roundhouse.errors.AlreadyJoined` on the second call.
    """
    global _is_member
    check_is_no_child()
    if _is_member:
        raise AlreadyJoined(
            "rh.join was called twice: a process is a member of one job; put both models in one state. In a notebook, write "
            "`with rh.join(...) as job:`, which ends the membership, so that the cell may run again; after an rh.join without "
            "`with`, restart the kernel"
        )
    if gradients not in ("ddp", "manual"):
        raise ConfigError(f'rh.join: gradients is {gradients!r}; give "ddp" or "manual"')
    if os.environ.get("ROUNDHOUSE_GENERATION"):
        sys.excepthook = exit_with
        raise ConfigError(
            "rh.join in a job with elastic.mode: Restart, which ends and starts the script for every generation: set "
            "elastic.mode: InProcess"
        )
    if os.environ.get("ROUNDHOUSE_MEMBERSHIP_FILE"):
        sys.excepthook = exit_with
    else:
        _check_launcher()
    process = Process.start(
        None if checkpoint_dir is None else Path(checkpoint_dir),
        checkpoint_every_steps,
        checkpoint_every_seconds,
        checkpoint_keep,
    )
    keep_freed_memory()
    try:
        chosen = _chosen_device(state, device)
        _check_settings(process, chosen)
        job = Job(
            process,
            state,
            chosen,
            is_manual=gradients == "manual",
            seeds=seed_each_step,
            ended=lambda: _ended(process),
        )
    except Exception as error:
        # Also errors of the script itself, such as those of a state_dict().
        process.fail(*explained(error))
        raise
    _is_member = True
    return job


def _check_launcher() -> None:
    """Refuses processes of another launcher. Each would train alone, on the same data and into the
    same files."""
    world_size = os.environ.get("WORLD_SIZE", "")
    if "RANK" in os.environ and world_size.isdecimal() and int(world_size) > 1:
        raise ConfigError(
            f"rh.join under torchrun or another launcher (WORLD_SIZE={world_size}): each of its processes would train alone. "
            "Roundhouse starts the workers itself: `kubectl roundhouse run --local -f job.yaml` on this machine, and `kubectl "
            "apply -f job.yaml` on a cluster. For one process alone: `env -u WORLD_SIZE python train.py`"
        )


def _check_settings(process: Process, device: torch.device) -> None:
    """Warns of settings that are lost between agent and script, for example by `env -i` or `sudo`.
    A process alone does not use NCCL."""
    missing = process.missing_settings() if process.has_agent and device.type == "cuda" else []
    if missing:
        warnings.warn(
            f"rh.join: {', '.join(missing)} are not set, which the agent of a worker sets: with PyTorch's defaults a process whose "
            "peer is lost may be ended by PyTorch's watchdog; start the script with the environment of the agent",
            stacklevel=3,
        )


def _ended(process: Process) -> None:
    global _is_member
    # A worker's process that has trained leaves the job; a second lobby would wait indefinitely. A
    # notebook joins again.
    _is_member = process.has_agent


def _chosen_device(state: dict[str, Any], device: torch.device | str | None) -> torch.device:
    chosen = _device_of(state) if device is None else torch.device(device)
    if chosen.type == "cuda" and chosen.index is None:
        # Add the index, because other threads may have another current device.
        return torch.device("cuda", torch.cuda.current_device())
    return chosen


def _device_of(state: dict[str, Any]) -> torch.device:
    entries = list(state.values()) if isinstance(state, dict) else []
    modules = [entry for entry in entries if isinstance(entry, torch.nn.Module)]
    in_modules = itertools.chain.from_iterable([*module.parameters(), *module.buffers()] for module in modules)
    # A tensor beside the modules, such as the best loss so far, may stay on the CPU.
    others = (entry for entry in entries if isinstance(entry, torch.Tensor))
    first = next(itertools.chain(in_modules, others), None)
    return torch.device("cpu") if first is None else first.device
