"""The script's own data loaders: their options, and some of their batches."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from torch.utils.data import DataLoader, SequentialSampler

from ..data import Worker, all_batches
from ..seeding import mixed, seed_all

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


class _SeededBatches:
    """A data set that seeds the random numbers of each batch by its first sample: those of its
    samples and of the collate function, which runs next in the same process."""

    def __init__(self, dataset: Any, seed: int):
        self.dataset = dataset
        self._seed = seed

    def __getitems__(self, indices: list[int]) -> list[Any]:
        seed_all(mixed(self._seed, indices[0]))
        read = getattr(self.dataset, "__getitems__", None)
        return [self.dataset[index] for index in indices] if read is None else read(indices)


def batches_of(loader: Any, indices: list[list[int]], seed: int | None = None) -> Generator[Any, None, None]:
    """Some batches of a loader, given by the indices of their samples. With a ``seed`` the random
    numbers of a batch depend on it and on the first sample alone. This changes the generators."""
    if not indices:
        return
    options = options_of(loader)
    if loader.num_workers:
        options["worker_init_fn"] = Worker(loader.worker_init_fn)
    dataset: Any = loader.dataset if seed is None else _SeededBatches(loader.dataset, seed)
    yield from all_batches(DataLoader(dataset, batch_sampler=indices, **options))
