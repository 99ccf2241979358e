"""What a rank brings to the end of a step, and what all ranks have brought: numbers on the device, which the host reads once.

To read a number from a GPU is to wait for all that was launched before it. So loss, weight, norm and digest stay on the device
until the ranks' sum is there, and are read together with it. On CPUs it is the same.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from .errors import ConfigError

if TYPE_CHECKING:
    from .groups import Group

Number = torch.Tensor | float


class StepNumbers:
    """Of one step. The native part calls :meth:`begin` and :meth:`end`, or, in a world of one, :meth:`alone`.

    ``loss``: the sum over this rank's samples. ``weight``: what they weigh together. ``own_norm``: of gradients that may not be
    those of the other ranks. ``digest``: of gradients that have to be the same on all ranks. ``norm`` and ``scale`` are read with
    the rest, and are numbers thereafter; they are set before :meth:`end`.
    """

    @torch.no_grad()
    def __init__(self, device: torch.device, loss: Number, weight: Number, own_norm: Number, digest: Number):
        self._device = device
        self.norm: Number = 0.0
        self.scale: Number = 1.0
        # Once they are read.
        self.weight = 0.0
        self._brought = brought = self._stacked(loss, own_norm, weight, digest)
        is_finite = brought.isfinite()
        is_weight = is_finite[2].logical_and(brought[2] >= 0)
        is_right = torch.stack([is_finite[0], is_finite[:2].all(), is_weight])
        finite = brought.nan_to_num(0.0, 0.0, 0.0)
        # In the order of Layout::places in src/process/training/numbers.rs.
        given = torch.cat([finite[:1], finite[2:3].clamp_min(0.0), finite[3:]])
        self._own = torch.cat([is_right.logical_not().to(torch.float64), given])

    @torch.no_grad()
    def begin(self, group: Group, numbers: list[float], places: list[int]) -> tuple[torch.Tensor, Any]:
        """Begins the ranks' sum. ``numbers``: what the host knows, with their witnesses after them, and 0 at the ``places`` of
        what the device knows."""
        # An abort may have ended the sum of the gradients with the same garbage on this rank and on its neighbours, and the sum of
        # these numbers may be right all the same. Adding the abort flag changes this rank's digest if an abort began first.
        self._own[-1:] += group.abort_flag()
        together = group.uploaded(numbers)
        num_values = len(numbers) // 2
        # A witness is k(1 - x); that of 0 is k.
        witnesses = (1.0 - self._own) * numbers[num_values + places[0]]
        index = group.index_of((*places, *(num_values + place for place in places)))
        together.index_copy_(0, index, torch.cat([self._own, witnesses]))
        return together, group.backend.allreduce([together])

    def end(self, group: Group, begun: tuple[torch.Tensor, Any]) -> list[float]:
        """The sums, when all ranks have begun the same one."""
        together, work = begun
        group.bounded(work).wait()
        return self._read(together)

    def alone(self, numbers: list[float], places: list[int]) -> list[float]:
        """What this rank brings, with what the host knows."""
        for place, own in zip(places, self._read(self._own)):
            numbers[place] = own
        return numbers

    def check_weight(self) -> None:
        """Raises ConfigError if the weight is no number of at least 0. Then no rank commits the step."""
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise ConfigError(
                f"job.commit: the weight is {self.weight}; give a number of at least 0, such as that of the rank's tokens"
            )

    @torch.no_grad()
    def _read(self, numbers: torch.Tensor) -> list[float]:
        """Waits for the device, once."""
        beside = self._stacked(self.norm, self.scale)
        *read, self.norm, self.scale, self.weight = torch.cat([numbers, beside, self._brought[2:3]]).tolist()
        return read

    def _stacked(self, *numbers: Number) -> torch.Tensor:
        return torch.stack([self._of_device(number) for number in numbers])

    def _of_device(self, number: Number) -> torch.Tensor:
        if isinstance(number, torch.Tensor):
            return number.detach().to(self._device, torch.float64, non_blocking=True).reshape(())
        # No copy from the host.
        return torch.full((), number, dtype=torch.float64, device=self._device)
