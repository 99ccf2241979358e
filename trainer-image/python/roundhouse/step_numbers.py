"""The vote of a rank at the end of a step, and the result of all votes: numbers on the device that
the host reads once.

Reading a number from a GPU waits for all work that was launched before. So loss, weight, norm and
digest stay on the device until the ranks' sum has arrived, and are read together with it. The same
code runs on CPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ._native import fault_point
from .errors import LOST_IN_REPLICA, ConfigError, PeerLost

if TYPE_CHECKING:
    from .groups import Group
    from .replica import Replica

Number = torch.Tensor | float

# The largest weight of a rank. The sum over all ranks has to be finite, because gradients are
# divided by it.
_MOST_WEIGHT = 1e300


class StepNumbers:
    """The numbers of one step. The native part calls :meth:`begin` and :meth:`end`, or
    :meth:`alone` with one process.

    ``loss``: the sum over this rank's samples. ``weight``: the total weight of these samples.
    ``own_norm``: the norm of gradients that may differ between ranks. ``digest``: the digest of
    gradients that must be the same on all ranks. ``norm`` and ``scale`` are set before :meth:`end`,
    are read with the rest, and are Python numbers afterwards.

    With replicas the sum has two parts: over the ranks with the same shard, and then over the
    processes of the replica. The first sum can succeed for one shard and fail for another. The
    second one shows this to all processes of the replica, so none of them commits the step alone.
    """

    @torch.no_grad()
    def __init__(
        self,
        device: torch.device,
        loss: Number,
        weight: Number,
        own_norm: Number,
        digest: Number,
        replica: Replica | None = None,
        step: int = 0,
    ):
        self._device = device
        self._replica, self._step = replica, step
        # Known when the vote begins.
        self._rank = 0
        # Whether the processes of the replica have summed what they have.
        self._has_voted_in_replica = False
        self.norm: Number = 0.0
        self.scale: Number = 1.0
        # Set when the numbers are read.
        self.weight = 0.0
        self._brought = brought = self._stacked(loss, own_norm, weight, digest)
        is_finite = brought.isfinite()
        is_weight = (brought[2] >= 0).logical_and(brought[2] <= _MOST_WEIGHT)
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
        self._rank = group.rank
        together = group.uploaded(numbers)
        num_values = len(numbers) // 2
        # A checksum is k(1 - x); the checksum of 0 is k.
        witnesses = (1.0 - self._own) * numbers[num_values + places[0]]
        index = group.index_of((*places, *(num_values + place for place in places)))
        together.index_copy_(0, index, torch.cat([self._own, witnesses]))
        return together, group.begin_vote(together)

    def end(self, begun: tuple[torch.Tensor, Any]) -> list[float]:
        """Waits until all ranks have started the same sum, and returns the sums. Raises
        RuntimeError if a rank is lost."""
        together, work = begun
        try:
            if work is not None:
                work.wait()
            read = self._read(together)
        except RuntimeError:
            self._of_replica(None)
            raise
        sums = self._of_replica(read)
        if sums is None:
            raise RuntimeError(LOST_IN_REPLICA)
        return sums

    def _of_replica(self, read: list[float] | None) -> list[float] | None:
        self._has_voted_in_replica = True
        if self._replica is None:
            return read
        fault_point("Column", self._rank, self._step)
        try:
            return self._replica.vote(read)
        except PeerLost as lost:
            raise RuntimeError(str(lost)) from lost

    def end_without_vote(self) -> None:
        """Must be called after the vote. The other processes of the replica wait for a process that
        has not voted."""
        if self._replica is not None and not self._has_voted_in_replica:
            self._has_voted_in_replica = True
            self._replica.vote(None)

    def alone(self, numbers: list[float], places: list[int]) -> list[float]:
        """The complete numbers of this rank, for a process alone."""
        for place, own in zip(places, self._read(self._own)):
            numbers[place] = own
        return numbers

    def check_weight(self) -> None:
        """Raises ConfigError if the weight is not a number from 0 to 1e300. In this case no rank
        commits the step."""
        if not 0 <= self.weight <= _MOST_WEIGHT:
            raise ConfigError(
                f"job.commit: the weight is {self.weight}; give a number from 0 to {_MOST_WEIGHT}, such as that of the rank's tokens"
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
