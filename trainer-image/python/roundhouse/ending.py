"""The end of a process: its exit code, its termination message, and its result."""

from __future__ import annotations

import builtins
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

import torch

from .errors import ConfigError, Left, RoundhouseError, exit_code_of
from .migration import recognized
from .traces import cut, words_and_place

# A part of the message of a PipelineStage for an error of its module.
_OF_STAGE = "failed to run forward"


def exit_with(kind: type[BaseException], error: BaseException, where: Any) -> None:
    """Ends a worker's process after an exception, with the exit code of the error."""
    # A process that was asked to leave needs no stack trace.
    if not isinstance(error, Left):
        sys.__excepthook__(kind, error, where)
        if (advice := recognized(error)) is not None:
            print(advice, file=sys.stderr)
    leave_with(error)


def leave_with(error: BaseException) -> NoReturn:
    """Ends a worker's process with the exit code of an error. The caller has printed the error."""
    sys.stdout.flush()
    sys.stderr.flush()
    # Do not run exit handlers: threads of PyTorch may wait for peers, and its destructors wait for
    # these threads.
    os._exit(_code_of(error))


class Exits:
    """Finds the error with which the script of this process ends. Python does not give it to a
    handler of ``atexit``. A script that raises SystemExit itself, or that has imported ``sys.exit``
    by name before, is not detected."""

    def __init__(self) -> None:
        self._uncaught_before, self._own_exit = _last_uncaught(), sys.exit
        self._last: BaseException | None = None
        # The functions of module site, which some interpreters do not load, raise SystemExit, too.
        names = ((sys, "exit"), (builtins, "exit"), (builtins, "quit"))
        self._replaced = [(module, name, getattr(module, name)) for module, name in names if hasattr(module, name)]
        for module, name, _ in self._replaced:
            setattr(module, name, self._exit)

    def close(self) -> None:
        """Restores the functions that this object has replaced."""
        for module, name, before in self._replaced:
            if getattr(module, name) == self._exit:
                setattr(module, name, before)

    def error(self) -> BaseException | None:
        """The error with which Python ends the script: that of ``sys.exit`` or ``exit`` with
        another code than 0, or one that a library has printed in its own ``sys.excepthook``."""
        last = _last_uncaught()
        return self._last if last is self._uncaught_before else last

    def _exit(self, code: Any = None) -> NoReturn:
        try:
            self._own_exit(code)  # A library, such as wandb, may have replaced it, too.
        except SystemExit as error:
            raise _Exit(error.code, self) from None

    def note(self, error: SystemExit) -> None:
        """Must be called when the process ends with ``error``."""
        self._last = error


class _Exit(SystemExit):
    """What ``sys.exit`` raises. A script may catch it and continue. When Python ends the process,
    it reads the code without a frame of Python below, which nothing else does."""

    def __init__(self, code: Any, exits: Exits):
        super().__init__(code)
        self._code, self._exits = code, exits

    @property
    def code(self) -> Any:
        if self._code and sys._getframe().f_back is None and threading.current_thread() is threading.main_thread():
            self._exits.note(self)
        return self._code

    @code.setter
    def code(self, code: Any) -> None:
        self._code = code


def _last_uncaught() -> BaseException | None:
    # Python before 3.12 has only the second one.
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def _code_of(error: BaseException) -> int:
    error = _own_cause(error)
    if recognized(error) is not None:
        return ConfigError.exit_code
    # The exit code of a shell for a signal.
    other = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return exit_code_of(error) or other


def _own_cause(error: BaseException) -> BaseException:
    """The error of the script. A schedule of a pipeline raises another one from that of a stage,
    with the shapes of the inputs as its message."""
    cause = error.__cause__
    return cause if cause is not None and type(error) is RuntimeError and _OF_STAGE in str(error) else error


def explained(error: BaseException) -> tuple[int | None, str]:
    """The exit code (None for Python's own) and the one-line termination message of a process that
    ends with an exception."""
    if isinstance(error, SystemExit):
        words = " ".join(str(error.code).split())
        return (error.code if isinstance(error.code, int) else 1), f"the script has exited with {cut(words)}"
    error = _own_cause(error)
    kind, words, place = words_and_place(error)
    advice = recognized(error)
    if advice is not None:
        return ConfigError.exit_code, advice + place
    if isinstance(error, RoundhouseError):
        return error.exit_code, words
    return exit_code_of(error), (f"{kind}: {cut(words)}" if words else kind) + place


def write_result(file: Path, state: dict[str, torch.Tensor]) -> None:
    """Writes a ``state_dict`` as safetensors. The file is complete or does not exist."""
    from safetensors.torch import save_file

    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(file.name + ".partial")
    tensors: dict[str, torch.Tensor] = {}
    memory = set()
    for name, tensor in state.items():
        own = tensor.detach().contiguous()
        place = own.device, own.untyped_storage().data_ptr()
        # Copy tied weights for each of their names, so that load_state_dict finds all names.
        # safetensors refuses shared memory.
        tensors[name] = own.clone() if place in memory else own
        memory.add(place)
    save_file(tensors, partial)
    partial.replace(file)
