"""Files of the weights that rank 0 writes while training continues.

A thread writes a copy, so no rank waits for the volume, and a failed write ends no training.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from .errors import ConfigError
from .gradients import Model
from .replica import Replica
from .sharded import ShardedModel
from .whole_state import whole_state

Tensors = dict[str, torch.Tensor]


class Content(NamedTuple):
    """What a file is to contain."""

    tensors: Tensors
    # Number of steps that these weights have learned from.
    steps: int


def module_of_file(caller: str, module: torch.nn.Module | None, modules: Sequence[torch.nn.Module]) -> torch.nn.Module:
    """The module whose tensors a file gets, by default the first one of the state. The names in the
    file are those of the module itself, without its wrappers."""
    if module is None and not modules:
        raise ConfigError(f"job.{caller} without a module, and none is in rh.join(state=...): give it the module")
    module = modules[0] if module is None else module
    module = module.module if isinstance(module, (Model, ShardedModel)) else module
    inner: torch.nn.Module = getattr(module, "_orig_mod", module)
    return inner


def copies_of(module: torch.nn.Module, replica: Replica | None = None) -> Tensors:
    """Copies of a module's tensors in the memory of the host. ``replica``: the processes that share
    the module, all of which must call this; the first one gets the whole tensors."""
    if replica is not None:
        return {name: one.clone() for name, one in whole_state(module, replica).items()}
    tensors = module.state_dict().items()
    return {name: one.detach().to("cpu", copy=True, memory_format=torch.contiguous_format) for name, one in tensors}


def write_file(file: Path, tensors: Tensors) -> None:
    """Writes tensors as safetensors. The file gets its name when it is complete."""
    from safetensors.torch import save_file

    file.parent.mkdir(parents=True, exist_ok=True)
    # Incomplete files of an earlier rank 0. If it still runs, cut off from the others, its rename
    # fails, so it does not replace the newer file.
    for incomplete in file.parent.glob(f"{glob.escape(file.name)}.partial-*"):
        with contextlib.suppress(OSError):
            incomplete = incomplete.rename(f"{incomplete}-removed")
        shutil.rmtree(incomplete, ignore_errors=True)
    # In a directory, because safetensors writes a file of another name first.
    directory = file.with_name(f"{file.name}.partial-{uuid.uuid4().hex}")
    directory.mkdir()
    try:
        partial = directory / file.name
        # safetensors gives its files mode 0600, and another user may have to read the weights.
        partial.touch()
        mode = partial.stat().st_mode
        save_file(tensors, partial)
        partial.chmod(mode & 0o777)
        with open(partial, "rb") as written:
            os.fsync(written.fileno())
        partial.replace(file)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class Exports:
    """The exports of this process: at most one write per file is in progress."""

    def __init__(self, write: Callable[[Path, Tensors], None] = write_file):
        self._write = write
        self._changed = threading.Condition()
        # For each file that is being written: what to write next, if anything.
        self._next: dict[Path, Content | None] = {}

    def start(self, file: Path, tensors: Tensors, steps: int) -> None:
        """Begins to write a file. If a write of it is in progress, this content follows it, and
        replaces one that waits already."""
        content = Content(tensors, steps)
        with self._changed:
            if file in self._next:
                self._next[file] = content
                return
            self._next[file] = None
        # A daemon, because a volume that does not answer must not keep the process alive.
        threading.Thread(target=self._run, args=(file, content), name="export", daemon=True).start()

    def wait(self, seconds: float, file: Path | None = None) -> None:
        """Waits until all files, or this one, are written. Warns of a file that takes longer."""
        end = time.monotonic() + seconds
        with self._changed:
            while open_files := [one for one in self._next if file in (None, one)]:
                if not self._changed.wait(max(end - time.monotonic(), 0.0)) and time.monotonic() >= end:
                    _warn(f"job.export: {open_files[0]} is not written after {seconds:.0f} s, and the process does not wait longer")
                    return

    def _run(self, file: Path, content: Content | None) -> None:
        while content is not None:
            try:
                self._write(file, content.tensors)
            except Exception as error:
                _warn(
                    f"job.export: {file} was not written after step {content.steps}, and keeps its earlier content if it has one: "
                    f"{type(error).__name__}: {error}"
                )
            with self._changed:
                content = self._next[file]
                self._next[file] = None
                if content is None:
                    del self._next[file]
                    self._changed.notify_all()


def _warn(words: str) -> None:
    try:
        warnings.warn(words, stacklevel=2)
    except Warning:
        # The script turns warnings into errors, which would end the thread.
        print(words, file=sys.stderr)
