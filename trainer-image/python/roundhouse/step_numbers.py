"""The vote of a rank at the end of a step, and the result of all votes: numbers on the device that
the host reads once.

Reading a number from a GPU waits for all work that was launched before. So loss, weight, norm and
digest stay on the device until the ranks' sum has arrived, and are read together with it. The same
code runs on CPUs.
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
    """The numbers of one step. The native part calls :meth:`begin` and :meth:`end`, or
    :meth:`alone` with one process.

    ``loss``: the sum over this rank's samples. ``weight``: the total weight of these samples.
    ``own_norm``: the norm of gradients that may differ between ranks. ``digest``: the digest of
    gradients that must be the same on all ranks. ``norm`` and ``scale`` are set before :meth:`end`,
    are read with the rest, and are Python numbers afterwards.
    """

    @torch.no_grad()
    def __init__(self, device: torch.device, loss: Number, weight: Number, own_norm: Number, digest: Number):
        self._device = device
        self.norm: Number = 0.0
        self.scale: Number = 1.0
        # Set when the numbers are read.
        self.weight = 0.0
        self._brought = brought = self._stacked(loss, own_norm, weight, digest)
        is_finite = brought.isfinite()
        is_weight = is_finite[2].logical_and(brought[2] >= 0)
        is_right = torch.stack([is_finite[0], is_finite[:2].all(), is_weight])
        finite = brought.nan_to_num(0.0, 0.0, 0.0)
        # The order is that of Layout::places in src/process/training/numbers.rs.
        given = torch.cat([finite[:1], finite[2:3].clamp_min(0.0), finite[3:]])
        self._own = torch.cat([is_right.logical_not().to(torch.float64), given])

    @torch.no_grad()
    def begin(self, group: Group, numbers: list[float], places: list[int]) -> tuple[torch.Tensor, Any]:
        """Starts the ranks' sum. ``numbers``: the numbers that the host knows, followed by their
        checksums, with 0 at the ``places`` of the numbers that the device knows."""
        # An abort may have ended the sum of the gradients with the same garbage on this rank and on
        # its neighbours, while the sum of these numbers is correct. Adding the abort flag changes
        # this rank's digest if an abort began before.
        self._own[-1:] += group.abort_flag()
        together = group.uploaded(numbers)
        num_values = len(numbers) // 2
        # A checksum is k(1 - x); the checksum of 0 is k.
        witnesses = (1.0 - self._own) * numbers[num_values + places[0]]
        index = group.index_of((*places, *(num_values + place for place in places)))
        together.index_copy_(0, index, torch.cat([self._own, witnesses]))
        return together, group.backend.allreduce([together])

    def end(self, group: Group, begun: tuple[torch.Tensor, Any]) -> list[float]:
        """Waits until all ranks have started the same sum, and returns the sums."""
        together, work = begun
        group.bounded(work).wait()
        return self._read(together)

    def alone(self, numbers: list[float], places: list[int]) -> list[float]:
        """The complete numbers of this rank, for a process alone."""
        for place, own in zip(places, self._read(self._own)):
            numbers[place] = own
        return numbers

    def check_weight(self) -> None:
        """Raises ConfigError if the weight is not a number of at least 0. In this case no rank
        commits the step."""
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise ConfigError(
                f"job.commit: the weight is {self.weight}; give a number of at least 0, such as that of the rank's tokens"
            )

    @torch.no_grad()
    def _read(self, numbers: torch.Tensor) -> list[float]:
        """Reads the numbers; waits once for the device."""
        beside = self._stacked(self.norm, self.scale)
        *read, self.norm, self.scale, self.weight = torch.cat([numbers, beside, self._brought[2:3]]).tolist()
        return read

    def _stacked(self, *numbers: Number) -> torch.Tensor:
        return torch.stack([self._of_device(number) for number in numbers])

    def _of_device(self, number: Number) -> torch.Tensor:
        if isinstance(number, torch.Tensor):
            return number.detach().to(self._device, torch.float64, non_blocking=True).reshape(())
        # Created on the device, without a copy from the host.
        return torch.full((), number, dtype=torch.float64, device=self._device)
