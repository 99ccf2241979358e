"""Exceptions of the package. Each has the exit code that the process should end with."""

from __future__ import annotations

from ._native import own_failure


class RoundhouseError(Exception):
    """Something that keeps this process from training on.

    ``exit_code`` is what the process should exit with: 64 and 65 fail the job at once, all others may be tried again.
    """

    exit_code = 70
    newer: int | None = None


class ConfigError(RoundhouseError):
    """The script or its job is wrong. It would fail the same way again."""

    exit_code = 64


class StateError(ConfigError):
    """An entry of ``rh.join(state=...)`` cannot be kept as tensors and numbers, or has changed its shape."""


class NotCommitted(ConfigError):
    """The body of the loop ended without ``job.commit(...)``, or the optimizer was stepped outside of it."""


class AlreadyJoined(ConfigError):
    """``rh.join`` was called twice in one process."""


class DataMismatch(ConfigError):
    """The ranks do not have the same data set."""


class DataError(RoundhouseError):
    """Data is missing or damaged. It would fail the same way again."""

    exit_code = 65


class Diverged(ConfigError):
    """The loss or the gradients are no longer finite."""


class VolumeError(RoundhouseError):
    """The volume of the checkpoints does not answer, or refuses what is written."""

    exit_code = 74


class PeerLost(RoundhouseError):
    """Another rank is lost, or a newer generation has taken over. Another start continues."""

    exit_code = 75


class DeviceError(RoundhouseError):
    """The device or its driver has failed."""

    exit_code = 77


class Left(RoundhouseError):
    """This process was asked to leave, and has left between two steps."""

    exit_code = 143


def words_of(error: BaseException) -> str:
    """Its type and first line: PyTorch's errors of connections go on with a stack trace."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def is_own(error: BaseException) -> bool:
    """Whether an error of PyTorch is no peer's: too little memory, or a device that has failed. The next generation has it, too."""
    # Not by its class: this module does not wait for PyTorch.
    if type(error).__name__ == "OutOfMemoryError":
        return True
    return _own_failure(error) is not None


def exit_code_of(error: BaseException) -> int | None:
    """The exit code that an error asks for; None if it is that of any error of the script."""
    if isinstance(error, RoundhouseError):
        return error.exit_code
    code = _own_failure(error)
    return code if code == DeviceError.exit_code else None


def _own_failure(error: BaseException) -> int | None:
    # Some words are no UTF-8, such as the name of a file.
    return own_failure(str(error).encode(errors="replace").decode()) if isinstance(error, RuntimeError) else None


_BY_CODE: dict[int, type[RoundhouseError]] = {
    kind.exit_code: kind for kind in (ConfigError, DataError, VolumeError, PeerLost, DeviceError, Left)
}


def of_code(code: int, words: str, newer: int | None) -> RoundhouseError:
    """The exception of an exit code. ``newer``: the generation that has superseded this process, if one has."""
    error = _BY_CODE.get(code, RoundhouseError)(words)
    error.newer = newer
    return error
