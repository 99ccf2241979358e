"""Exceptions of the package. Each has the exit code that the process should end with."""

from __future__ import annotations


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


_BY_CODE: dict[int, type[RoundhouseError]] = {
    kind.exit_code: kind for kind in (ConfigError, DataError, VolumeError, PeerLost, DeviceError, Left)
}


def of_code(code: int, words: str, newer: int | None) -> RoundhouseError:
    """The exception of an exit code. ``newer``: the generation that has superseded this process, if one has."""
    error = _BY_CODE.get(code, RoundhouseError)(words)
    error.newer = newer
    return error
