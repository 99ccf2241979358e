"""What the loop of transformers gets in place of its data loader, optimizer and scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..errors import ConfigError
from ..integration.steps import Steps


class Epochs:
    """A loader whose batches are the steps of the job, each with this rank's share. Each iteration
    continues, and ends with an epoch."""

    def __init__(self, steps: Steps, dataset: Any, steps_per_epoch: int):
        self.dataset = dataset
        self._steps = steps
        self._steps_per_epoch = steps_per_epoch

    def __len__(self) -> int:
        return self._steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        return (batch.data for batch in self._steps.epoch())


class Stepped:
    """An optimizer or a scheduler that ``job.commit`` steps. ``is_passing``: whether the passes of
    a step are running, in which a step of the script would be lost."""

    def __init__(self, inner: Any, is_passing: Callable[[], bool]):
        self._inner = inner
        self._is_passing = is_passing

    def step(self, *_: Any, **__: Any) -> None:
        """Does nothing, because the commit has stepped already."""
        if self._is_passing():
            raise ConfigError(
                f"roundhouse.hf: {type(self._inner).__name__}.step() in training_step or compute_loss: the job steps it once, "
                "with the gradients of all workers; leave it out"
            )

    def zero_grad(self, *_: Any, **__: Any) -> None:
        """Does nothing, because the commit has reset the gradients."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
