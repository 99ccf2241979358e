"""Exceptions of the package. Each has the exit code with which the process should end."""

from __future__ import annotations

from collections.abc import Iterator

from ._native import own_failure

# Why a process loses a generation in which it has lost no rank itself. src/process/training.rs has
# the same words.
LOST_IN_REPLICA = "another process of this replica has lost a rank"


class RoundhouseError(Exception):
    """An error after which this process cannot continue to train.

    ``exit_code`` is the exit code that the process should use: 64 and 65 fail the job at once; all
    others can be retried.
    """

    exit_code = 70
    newer: int | None = None


class ConfigError(RoundhouseError):
    """The script or its job is invalid. A retry would fail in the same way."""

    exit_code = 64


class StateError(ConfigError):
    """An entry of ``rh.join(state=...)`` cannot be kept as tensors and numbers, or has changed its
    shape."""


class NotCommitted(ConfigError):
    """The body of the loop ended without ``job.commit(...)``, or the optimizer was stepped outside
    of it."""


class AlreadyJoined(ConfigError):
    """``rh.join`` was called twice in one process."""


class DataMismatch(ConfigError):
    """The ranks do not have the same data set."""


class DataError(RoundhouseError):
    """Data is missing or damaged. A retry would fail in the same way."""

    exit_code = 65


class Diverged(ConfigError):
    """The loss or the gradients are no longer finite."""


class VolumeError(RoundhouseError):
    """The volume of the checkpoints does not answer, or refuses a write."""

    exit_code = 74


class PeerLost(RoundhouseError):
    """Another rank is lost, or a newer generation has replaced this process. A restart continues
    the training."""

    exit_code = 75


class DeviceError(RoundhouseError):
    """The device or its driver has failed."""

    exit_code = 77


class Left(RoundhouseError):
    """This process was asked to leave, and has left between two steps."""

    exit_code = 143


def words_of(error: BaseException) -> str:
    """The type and the first line of an error: PyTorch's connection errors continue with a stack
    trace."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def is_own(error: BaseException) -> bool:
    """Whether an error of PyTorch is local (out of memory, device failure) rather than a lost peer.
    The next generation would have it, too."""
    # Do not check the class, because this module does not import PyTorch.
    if type(error).__name__ == "OutOfMemoryError":
        return True
    return _own_failure(error) is not None


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error, the one that it was raised from, and so on."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__


def exit_code_of(error: BaseException) -> int | None:
    """The exit code of an error; None for an ordinary error of the script."""
    if isinstance(error, RoundhouseError):
        return error.exit_code
    code = _own_failure(error)
    return code if code == DeviceError.exit_code else None


def _own_failure(error: BaseException) -> int | None:
    # Some messages are not UTF-8, such as file names.
    return own_failure(str(error).encode(errors="replace").decode()) if isinstance(error, RuntimeError) else None


_BY_CODE: dict[int, type[RoundhouseError]] = {
    kind.exit_code: kind for kind in (ConfigError, DataError, VolumeError, PeerLost, DeviceError, Left)
}


def of_code(code: int, words: str, newer: int | None) -> RoundhouseError:
    """The exception for an exit code. ``newer``: the generation that has superseded this process,
    if there is one."""
    error = _BY_CODE.get(code, RoundhouseError)(words)
    error.newer = newer
    return error
