"""What the loop of Lightning gets in place of its train loader and its schedulers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .training import Training


class Epochs:
    """A loader whose batches are the steps of the job. Each iteration continues the training, and
    ends with an epoch. ``training()`` returns the training when it has begun."""

    def __init__(self, dataset: Any, steps_per_epoch: int, training: Callable[[], Training]):
        self.dataset = dataset
        self._steps_per_epoch = steps_per_epoch
        self._training = training

    def __len__(self) -> int:
        return self._steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        # Lightning makes an iterator before the training has begun.
        training = self._training()
        if training.end_step():
            return
        for batch in training.steps.epoch():
            yield training.begin_step(batch)
            if training.end_step():
                return
        training.miss_epoch()


class Stepped:
    """A scheduler that ``job.commit`` steps. It counts the calls of the script."""

    def __init__(self, inner: Any):
        self.inner = inner
        self.num_calls = 0

    def step(self, *_: Any, **__: Any) -> None:
        """Does nothing else, because the commit steps the scheduler."""
        self.num_calls += 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
