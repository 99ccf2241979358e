"""What the loop of Lightning gets in place of its train loader and its schedulers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..data import Batch
from ..integration.steps import Steps


class Epochs:
    """A loader whose batches are the steps of the job. Each iteration continues the training, and
    ends with an epoch.

    ``steps()`` returns the steps when the training has begun. ``begin(batch)`` is called for each
    step, and returns what the loop gets. ``end()`` is called before the next step is asked for, and
    returns whether the training stops. ``miss()`` is called if the epoch ends before its last step, because
    this rank was stopped for so long.
    """

    def __init__(
        self,
        dataset: Any,
        steps_per_epoch: int,
        steps: Callable[[], Steps],
        *,
        begin: Callable[[Batch], Any],
        end: Callable[[], bool],
        miss: Callable[[], None],
    ):
        self.dataset = dataset
        self._steps_per_epoch = steps_per_epoch
        self._steps, self._begin, self._end, self._miss = steps, begin, end, miss

    def __len__(self) -> int:
        return self._steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        # Lightning makes an iterator before the training has begun.
        if self._end():
            return
        for batch in self._steps().epoch():
            yield self._begin(batch)
            if self._end():
                return
        self._miss()


class Stepped:
    """A scheduler that ``job.commit`` steps."""

    def __init__(self, inner: Any):
        self._inner = inner

    def step(self, *_: Any, **__: Any) -> None:
        """Does nothing, because the commit has stepped already."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
