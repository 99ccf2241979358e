"""The script's own data loaders: their options, and some of their batches."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from torch.utils.data import DataLoader, SequentialSampler

from ..data import Worker, all_batches

_OPTIONS = ("collate_fn", "num_workers", "pin_memory", "multiprocessing_context", "prefetch_factor")


def options_of(loader: Any) -> dict[str, Any]:
    """The options of a loader apart from those that choose samples."""
    return {name: getattr(loader, name) for name in _OPTIONS}


def sampler_of(loader: Any) -> Any:
    """What chooses the samples of a loader: its sampler, or a batch sampler of the script."""
    batches: Any = getattr(loader, "batch_sampler", None)
    # The `sampler` of a loader with a batch sampler says nothing.
    return batches.sampler if type(batches).__name__ == "BatchSampler" else batches


def is_sequential(loader: Any) -> bool:
    """Whether a loader reads a data set in its order, so that all ranks know its batches."""
    return type(sampler_of(loader)) is SequentialSampler and hasattr(loader.dataset, "__len__")


def iterates_as(loader: Any, *kinds: type[DataLoader[Any]]) -> bool:
    """Whether a loader yields its batches as one of ``kinds`` does. A class with an ``__iter__`` of
    its own may change, add or skip batches."""
    iterator = getattr(type(loader), "__iter__", None)
    return any(iterator is kind.__iter__ for kind in kinds)


def batches_of(loader: Any, indices: list[list[int]]) -> Generator[Any, None, None]:
    """Some batches of a loader, given by the indices of their samples."""
    if not indices:
        return
    options = options_of(loader)
    if loader.num_workers:
        options["worker_init_fn"] = Worker(loader.worker_init_fn)
    yield from all_batches(DataLoader(loader.dataset, batch_sampler=indices, **options))
