"""Loads the samples of a step."""

from __future__ import annotations

import copy
import ctypes
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, IterableDataset

from .errors import ConfigError, DataMismatch
from .migration import words_of_second_run
from .sampler import Sampler, Step
from .seeding import Probe, mixed, seed_all
from .streams import Shard, Streamed


class Batch:
    """The samples of this rank in one step, as the loader collates them.

    If a sample is a tuple,
    ``x, y = batch``, ``batch[0]``, ``batch.x`` and ``batch.y`` are its parts. ``data`` is the whole
    batch.
    """

    def __init__(self, step: Step, data: Any, open_step: Any):
        self.step = step
        self.data = data
        self._open_step = open_step

    @property
    def x(self) -> Any:
        """The first part of the samples."""
        return self.data[0]

    @property
    def y(self) -> Any:
        """The second part of the samples."""
        return self.data[1]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data)

    def __getitem__(self, key: Any) -> Any:
        return self.data[key]

    def __getattr__(self, name: str) -> Any:
        # Code that expects a tensor reads attributes of one, such as `shape`.
        raise AttributeError(
            f"the batch of a step has no attribute {name!r}: use batch.data, or `x, y = batch` if a sample is a tuple"
        )

    def to(self, device: Any, *, non_blocking: bool | None = None) -> Batch:
        """Returns the batch with its tensors on a device.

        ``non_blocking``: return before the copies are complete. The default is True unless the
        device is the CPU, which would use the tensors at once.
        """
        if non_blocking is None:
            non_blocking = torch.device(device).type != "cpu"
        return Batch(self.step, _moved(self.data, device, non_blocking), self._open_step)

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        # If a collective of the script has failed, the step is repeated in the next generation.
        return error is not None and self._open_step.collective_failed(error)


def _moved(data: Any, device: Any, non_blocking: bool) -> Any:
    # A PackedSequence is a tuple, of which one tensor must stay on the CPU.
    if isinstance(data, (torch.Tensor, PackedSequence)):
        return data.to(device, non_blocking=non_blocking)
    if isinstance(data, Mapping):
        moved = {key: _moved(value, device, non_blocking) for key, value in data.items()}
        if not isinstance(data, MutableMapping):
            return moved
        # A copy keeps additional attributes, as in Hugging Face's BatchEncoding.
        same = copy.copy(data)
        for key, value in moved.items():
            same[key] = value
        return same
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(_moved(value, device, non_blocking) for value in data))
    if isinstance(data, (list, tuple)):
        return type(data)(_moved(value, device, non_blocking) for value in data)
    return data


class _Seeded:
    """A data set whose samples draw random numbers that are a function of seed, epoch and index.

    Seeding the generators for each sample costs more than reading a sample from memory. So seeding
    starts with the first batch whose samples have drawn a random number; that batch is read a
    second time. Without a ``seed`` nothing is seeded. ``collates``: the script's collate function
    runs next in the same process and may draw, too.
    """

    def __init__(self, dataset: Any, seed: int | None, *, collates: bool = True):
        self.dataset = dataset
        self.seed = seed
        self._collates = collates
        self._draws = False
        self._probe: Probe | None = None

    def __getitem__(self, key: tuple[int, int]) -> Any:
        self._seed(key)
        return self.dataset[key[1]]

    def __getitems__(self, keys: list[tuple[int, int]]) -> list[Any]:
        if self.seed is None:
            return self._read([index for _, index in keys])
        if not self._draws:
            samples = self._read_unseeded([index for _, index in keys])
            if self._draws or self._collates:
                # Otherwise the collate function would draw the same numbers after each batch.
                self._seed(keys[-1])
            if not self._draws:
                return samples
        return [self[key] for key in keys]

    def _read_unseeded(self, indices: list[int]) -> list[Any]:
        # Created where the samples are read, which may be another process.
        self._probe = self._probe or Probe()
        self._probe.begin()
        samples = self._read(indices)
        self._draws = self._probe.was_drawn_from()
        return samples

    def _read(self, indices: list[int]) -> list[Any]:
        read = getattr(self.dataset, "__getitems__", None)
        return [self.dataset[index] for index in indices] if read is None else read(indices)

    def _seed(self, key: tuple[int, int]) -> None:
        if self.seed is not None:
            seed_all(mixed(self.seed, *key))


class _Feed:
    """Provides a loader with the keys of the samples to read next."""

    def __init__(self) -> None:
        self.wanted: Callable[[], list[tuple[int, int]] | None] = lambda: None

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        while (keys := self.wanted()) is not None:
            yield keys


class Worker:
    """Initializes a worker of the loader, so that it ends with the process that reads from it.

    A worker has copies of that process' connections. They would stay open for the peers after the
    process was killed.
    """

    def __init__(self, then: Callable[[int], None] | None):
        self._then = then

    def __call__(self, index: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if self._then is not None:
            self._then(index)


def _is_indexed(dataset: Any) -> bool:
    """Whether single samples can be read by index."""
    return hasattr(dataset, "__len__") and (hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__"))


class Loader:
    """Reads the batches of the next steps, in a DataLoader whose workers live as long as the
    training."""

    def __init__(self, dataset: Any, sampler: Sampler, *, seeds: bool = True, **options: Any):
        if isinstance(dataset, DataLoader):
            raise ConfigError(
                "job.steps makes the DataLoader itself: give it the data set (loader.dataset), and num_workers, collate_fn and other "
                "options as arguments; the batch size belongs to job.sampler"
            )
        if not isinstance(dataset, Shard) and (isinstance(dataset, IterableDataset) or not _is_indexed(dataset)):
            raise ConfigError(
                f"job.steps: a {type(dataset).__name__} can only be read from its beginning: give job.shard_of(stream, "
                "num_samples=N) in its place, and job.sampler in_order=True; or give the data set __getitem__ and __len__"
            )
        length = len(dataset)
        if length != sampler.num_samples:
            raise DataMismatch(
                f"the data set has {length} samples, and the sampler was made for {sampler.num_samples}: "
                "give job.sampler len(dataset)"
            )
        if "drop_last" in options:
            raise ConfigError("job.steps: drop_last belongs to job.sampler(..., drop_last=True); remove it here")
        for name in ("batch_size", "shuffle", "sampler", "batch_sampler"):
            if name in options:
                raise ConfigError(f"job.steps: {name} is the sampler's business; remove it")
        if not options.get("in_order", True):
            raise ConfigError("job.steps: in_order=False would give steps the samples of others; remove it")
        if isinstance(dataset, Shard) and not sampler.in_order:
            raise ConfigError("job.steps: a stream is read in its order: give job.sampler in_order=True")
        self._sampler = sampler
        self._feed = _Feed()
        self._feed.wanted = self._next_keys
        self._place = (0, 0, 1)
        self._at: tuple[int, int] | None = None
        # Passes whose samples the loader was asked to read, in order, and the passes of the same
        # step for which it was not asked yet.
        self._asked: deque[Step] = deque()
        self._next: deque[Step] = deque()
        if options.get("num_workers"):
            options.setdefault("persistent_workers", True)
            options["worker_init_fn"] = Worker(options.get("worker_init_fn"))
        seed = sampler.seed if seeds else None
        source: Any = Streamed(dataset, seed) if isinstance(dataset, Shard) else _Seeded(
            dataset, seed, collates=options.get("collate_fn") is not None
        )
        self._loader: DataLoader[Any] = DataLoader(source, batch_sampler=self._feed, **options)
        self._batches: Iterator[Any] | None = None

    def _next_keys(self) -> list[tuple[int, int]] | None:
        assert self._at is not None
        if not self._next:
            step = self._sampler.plan(*self._at, self._place)
            if step is None:
                return None
            self._next.extend(self._sampler.passes(step))
        part, at = self._next.popleft(), self._at
        if not self._next:
            self._at = (at[0] + 1, at[1] + part.global_size)
        self._asked.append(part)
        return [(part.epoch, index) for index in part.indices or self._spare(part, *at)]

    def _spare(self, part: Step, steps: int, samples: int) -> tuple[int, ...]:
        """The sample of a rank without samples; its gradients do not count. It is not sample 0 of a
        stream, which would have to start again. A rank without a slice has as many as in the last
        one, because BatchNorm refuses a single sample."""
        size = 1
        if self._sampler.slices is not None and part.slice is None:
            start, end = self._sampler.slice_of(part.global_size, self._sampler.num_slices(part.global_size) - 1)
            size = end - start
        batch = self._sampler.schedule.batch(steps, samples)
        return tuple(range(batch[1], batch[1] + size)) if batch is not None and self._sampler.in_order else (0,) * size

    def load(self, step: Step, samples: int) -> Any:
        """The batch of a step that follows ``samples`` committed samples."""
        place = (step.generation, step.rank, step.world_size)
        if place != self._place:
            # Batches in progress belong to another share: read and discard them. The workers
            # continue.
            self._place = place
            self._begin_at(step, samples)
        while True:
            try:
                if self._batches is None:
                    self._asked.clear()
                    self._begin_at(step, samples)
                    self._batches = iter(self._loader)
                data = next(self._batches)
            except (RuntimeError, BrokenPipeError) as error:
                if self._ran_script_again(error):
                    raise ConfigError(words_of_second_run()) from error
                raise
            except StopIteration as error:
                if self._asked:
                    # A StopIteration of the data set, which a loader takes for the end. Python
                    # treats it as an error in generators, too (PEP 479). The message of a worker
                    # names the error itself.
                    words = str(error) if str(error).startswith("Caught ") else "the data set has raised StopIteration"
                    raise RuntimeError(words).with_traceback(error.__traceback__) from None
                # The loader had been asked for all steps to the end before the share changed.
                self._batches = None
                continue
            asked = self._asked.popleft()
            if (asked.generation, asked.number, asked.slice) == (step.generation, step.number, step.slice):
                return data

    def _begin_at(self, step: Step, samples: int) -> None:
        """Lets the loader read from the first pass of a step on."""
        self._at = (step.number - 1, samples)
        self._next.clear()

    def _ran_script_again(self, error: BaseException) -> bool:
        """Whether a worker of the loader has ended because it ran the script again and `rh.join`
        refused it."""
        method = getattr(self._loader.multiprocessing_context, "_name", None) or multiprocessing.get_start_method()
        if method == "fork" or not self._loader.num_workers:
            return False
        workers = getattr(self._batches, "_workers", [])
        # The worker may end before it has read its task, or before all workers have started.
        was_refused = isinstance(error, BrokenPipeError) or f"exit code {ConfigError.exit_code}" in str(error)
        return was_refused or any(worker.exitcode == ConfigError.exit_code for worker in workers)

    def close(self) -> None:
        """Ends the workers. The loader must not be used afterwards."""
        end_workers(self._batches)
        self._batches = None
        del self._loader


def all_batches(loader: DataLoader[Any]) -> Generator[Any, None, None]:
    """All batches of a loader, whose workers end with them. In a generator a StopIteration of the
    data set is an error (PEP 479)."""
    batches = iter(loader)
    try:
        for _ in range(len(loader)):
            yield next(batches)
    finally:
        end_workers(batches)


def end_workers(batches: Any) -> None:
    """Ends the workers of an iterator over a ``DataLoader``."""
    # Do not leave it to the garbage collector: the traceback of an error keeps the iterator alive,
    # and the collector ends the workers in an order in which each takes 5 s.
    shutdown = getattr(batches, "_shutdown_workers", None)
    if shutdown is not None:
        shutdown()
