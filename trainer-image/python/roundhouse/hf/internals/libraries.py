"""The supported versions of transformers and accelerate, and what both get in a worker: no
launcher, a rank that changes, and one GPU."""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import os
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ...errors import ConfigError
from ...job import Job
from ...replica import current

SUPPORTED = "transformers 5.5 and newer with accelerate 1.4 and newer, tested up to transformers 5.24.0 and accelerate 1.15.0"
try:
    import transformers  # noqa: F401
    from accelerate import PartialState
    from accelerate.state import AcceleratorState
except ImportError as error:
    raise ConfigError(
        f"roundhouse.hf needs transformers and accelerate ({SUPPORTED}): {error}; pip install 'roundhouse[hf]'"
    ) from error

IS_WORKER = bool(os.environ.get("ROUNDHOUSE_MEMBERSHIP_FILE"))


def _is_useful(record: logging.LogRecord) -> bool:
    return "process group is initialized" not in str(record.msg) or current() is None


# TrainingArguments advise a launcher to processes that have a default group, as those of a replica.
logging.getLogger("transformers.training_args").addFilter(_is_useful)


def check_methods(kind: Any, methods: Iterable[str], version: str) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` if a class has not all methods of a supported
    version. ``version``: the library that is installed."""
    missing = [name for name in methods if not hasattr(kind, name)]
    if missing:
        raise ConfigError(
            f"roundhouse.hf supports {SUPPORTED}; {version} is installed, whose {kind.__name__} has no {', '.join(missing)}"
        )


def keeps_metrics(trainer: Any) -> bool:
    """Whether a trainer, such as those of TRL, collects metrics in ``compute_loss``."""
    return hasattr(trainer, "_metrics")


@contextlib.contextmanager
def unmeasured(trainer: Any) -> Iterator[None]:
    """In this context such a trainer collects nothing."""
    if not keeps_metrics(trainer):
        yield
        return
    kept = trainer._metrics
    trainer._metrics = copy.deepcopy(kept)
    try:
        yield
    finally:
        trainer._metrics = kept


def take_rank(job: Job, *, is_behind: bool = False) -> None:
    """Gives the libraries the rank of the current generation. They save and report where it is 0.
    ``is_behind``: the others have done that already."""
    set_rank(max(job.rank, 1) if is_behind else job.rank)


# The rank that set_rank has given the libraries.
_rank: int | None = None


def _keep_rank() -> None:
    """Gives that rank to each new state of the libraries, too. ``TrainingArguments`` make new ones,
    in which each worker would be rank 0."""
    begin = PartialState.__init__

    @functools.wraps(begin)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        is_new = not PartialState._shared_state
        begin(self, *args, **kwargs)
        if is_new and _rank is not None:
            self.process_index = _rank

    PartialState.__init__ = init


if IS_WORKER:
    _keep_rank()


def set_rank(rank: int) -> None:
    """Gives the libraries a rank."""
    global _rank
    _rank = rank
    PartialState().process_index = rank
    if AcceleratorState._shared_state:
        AcceleratorState().process_index = rank


def own_gpu(device: Any) -> Any:
    """The GPU of this process, if ``device`` is one: others belong to other processes of this
    worker."""
    if not (IS_WORKER and device.type == "cuda"):
        return device
    own = torch.device("cuda", PartialState().local_process_index)
    torch.cuda.set_device(own)
    return own


def take_gpu() -> None:
    """Gives accelerate the GPU of this process."""
    PartialState().device = AcceleratorState().device = own_gpu(PartialState().device)


@contextlib.contextmanager
def replaced(target: Any, **attributes: Any) -> Iterator[None]:
    """In this context an object has other attributes."""
    own = vars(target)
    before = {name: own[name] for name in attributes if name in own}
    own.update(attributes)
    try:
        yield
    finally:
        for name in attributes:
            del own[name]
        own.update(before)
