"""What a script with accelerate gets from ``prepare`` in place of its optimizer, its scheduler and
its loaders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from accelerate.utils import send_to_device

from ...sampler import steps_per_epoch
from ..own_loop import OwnLoop, Stage
from ..refusals_of_prepare import refuse_late_scheduler


class CommittingOptimizer(AcceleratedOptimizer):
    """An optimizer whose step commits the step of the job."""

    def __init__(self, optimizer: Any, loop: OwnLoop, *, device_placement: bool):
        super().__init__(optimizer, device_placement=device_placement)
        self._loop = loop

    def step(self, closure: Any = None) -> None:
        """Commits the step after its last pass, and does nothing before."""
        refuse_late_scheduler(self)
        self._loop.step()
        self._is_overflow = self._loop.stage is Stage.DROPPED

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Does nothing, because the commit has reset the gradients."""


class CommittedScheduler(AcceleratedScheduler):
    """A scheduler that the commit steps."""

    def __init__(self, scheduler: Any, optimizer: Any, loop: OwnLoop):
        super().__init__(scheduler, optimizer)
        self._loop = loop

    def step(self, *_: Any, **__: Any) -> None:
        """Does nothing, because the commit has stepped already."""
        self._loop.step_scheduler()


class TrainingLoader:
    """The passes of this rank. Each iteration continues, and ends with an epoch.

    The length is that of the script's own loader, because the script computes the number of steps
    from it. ``begin()`` is called when an iteration begins, and ``end()`` when an epoch has ended.
    """

    def __init__(self, loader: Any, loop: OwnLoop, device: Any, begin: Callable[[], None], end: Callable[[], None]):
        self.dataset, self.collate_fn, self.batch_size = loader.dataset, loader.collate_fn, loader.batch_size
        self._loop, self._device, self._begin, self._end = loop, device, begin, end
        self._length = steps_per_epoch(len(loader.dataset), loader.batch_size, drop_last=loader.drop_last)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        self._begin()
        yield from self._loop.epoch(self._on_device)
        self._end()

    def set_epoch(self, epoch: int) -> None:
        """Does nothing, because the order of the samples is a function of the job's epoch."""

    def _on_device(self, inputs: Any) -> Any:
        return inputs if self._device is None else send_to_device(inputs, self._device)


class EvaluationLoader:
    """A loader that is no training loader. Each rank reads all its batches. ``begin()`` is called
    when an iteration begins."""

    def __init__(self, loader: Any, begin: Callable[[], None]):
        self._loader, self._begin = loader, begin

    def __len__(self) -> int:
        length: int = len(self._loader)
        return length

    def __iter__(self) -> Iterator[Any]:
        self._begin()
        yield from self._loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
