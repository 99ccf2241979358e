"""The versions of PyTorch that the package supports. ``tests/run/versions.sh`` has those that are
tested."""

from __future__ import annotations

from .errors import ConfigError

# 2.4 has torch.amp.GradScaler and the methods of NCCL's groups that an abort needs.
OLDEST = "2.4"
# The tests run on CPUs, and there FSDP2 trains since 2.7: in 2.6 its streams have no record_event.
# Before 2.6 it is in a private module, and is another one.
OLDEST_WITH_REPLICAS = "2.7"


def require_torch(oldest: str, what: str) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` if PyTorch is missing, or older than
    ``oldest``. ``what`` needs it."""
    try:
        import torch
    except ImportError as error:
        raise ConfigError(
            f"{what} needs PyTorch {oldest} or newer, which pip does not install with it: {error}; install the build that fits this "
            "machine, see https://pytorch.org/get-started"
        ) from error
    # It compares by numbers: 2.11 is newer than 2.4.
    if torch.__version__ < oldest:
        raise ConfigError(f"{what} needs PyTorch {oldest} or newer, and {torch.__version__} is installed: install a newer one")
