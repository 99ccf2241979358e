"""Sums the gradients of a step over the replicas, when it ends.

The sums are over what each process has of the gradients, so no parallelism has to be known here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ._native import fault_point
from .buckets import buckets
from .digests import digest_of, portions
from .errors import ConfigError
from .gradients import Gradients
from .local_parts import is_sharded, local
from .replica import Replica
from .step_numbers import Number
from .traces import shortened
from .updates import clip_factor, loss_sum, multiply_gradients, norms_of

if TYPE_CHECKING:
    from .groups import Group
    from .sampler import Step
    from .shared_views import SharedViews
    from .state import Row


class ColumnSums:
    """Sums the gradients of a step over the processes with the same shard, one of each replica."""

    def __init__(self, gradients: Gradients, replica: Replica, row: Row):
        self._gradients = gradients
        self._replica = replica
        self._row = row
        # The digest of the gradients of this process for each set of processes with copies.
        self._copied: dict[tuple[int, ...], float] = {}

    @property
    def _views(self) -> SharedViews:
        views = self._row.shared_views
        assert views is not None
        return views

    @torch.no_grad()
    def sum(self, parameters: Sequence[torch.Tensor], group: Group | None) -> None:
        """Sums what this process has of the gradients. An error of a lost peer is recorded, and the
        step is dropped later."""
        self._gradients.computed_at = time.perf_counter()
        _complete(parameters)
        factors = {key: factor for model in self._gradients.models for key, factor in model.factors.items()}
        for parameter in parameters if factors else ():
            if parameter.grad is not None and id(parameter) in factors:
                local(parameter.grad).mul_(factors[id(parameter)])
        self._copied = self._digests(parameters)
        if self._gradients.broken is not None:
            return
        if group is not None and self._gradients.step is not None:
            fault_point("Backward", group.rank, self._gradients.step.number)
        # With different samples the backward pass has weighted the gradients within the replica.
        weight = self._gradients.weight if self._replica.num_data == 1 else self._gradients.weight_of_replica
        column = None if group is None else group.column
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        try:
            if trained and column is not None and group is not None:
                _align(trained, group)
            copied, parts = self._in_order(trained)
            for bucket in buckets(parts, copied):
                self._sum([parts[index] for index in bucket], weight, group if column is not None else None)
        except RuntimeError as error:
            self._gradients.broke(error)

    def _in_order(self, parameters: Sequence[torch.Tensor]) -> tuple[list[tuple[int, ...]], list[torch.Tensor]]:
        """For each part of the gradients the processes that have a copy of it, and the parts.
        Copies are summed in the same order by all of them, so that they stay the same bit by
        bit."""
        views = self._views
        found = [(views.copied_in(p), views.place_of(p), local(p.grad)) for p in parameters if p.grad is not None]
        parts = [one for one in found if one[2].numel()]
        # Parts without copies are first, in the order of the parameters.
        parts.sort(key=lambda one: one[:2] if one[0] else ())
        return [copied for copied, _, _ in parts], [part for _, _, part in parts]

    def _digests(self, parameters: Sequence[torch.Tensor]) -> dict[tuple[int, ...], float]:
        """The digest of the gradients of this replica for each set of processes with copies."""
        views = self._views
        found: dict[tuple[int, ...], list[torch.Tensor]] = {}
        for parameter in sorted(parameters, key=views.place_of) if views.copied else ():
            if parameter.grad is not None and (copied := views.copied_in(parameter)):
                found.setdefault(copied, []).append(local(parameter.grad))
        return {copied: float(digest_of(portions(those), those[0].device)) for copied, those in found.items()}

    def _check_copies(self, digests: Sequence[float], parameters: Sequence[torch.Tensor]) -> None:
        """Raises :class:`~roundhouse.errors.ConfigError` if copies of a tensor in several processes
        have different gradients, and so would not stay copies."""
        given = iter(digests)
        for copied in self._views.copied:
            by_shard = {shard: next(given) for shard in copied}
            first = copied[0]
            differing = [shard for shard in copied if by_shard[shard] != by_shard[first]]
            if differing:
                names = self._row.names_of([one for one in parameters if self._views.copied_in(one) == copied])
                raise ConfigError(
                    f"job.commit: processes {first} and {differing[0]} of the replica have copies of {shortened(names) or 'a tensor'} "
                    "with different gradients: before job.commit, sum the gradients over the stages of a pipeline, or take their mean "
                    "over the parts of a sequence, with torch.distributed.all_reduce; with fully_shard along that dimension FSDP2 "
                    "takes the mean"
                )

    def _sum(self, parts: list[torch.Tensor], weight: float, group: Group | None) -> None:
        if group is None:
            if weight != 1.0:
                torch._foreach_mul_(parts, weight)
            return
        flat = torch.cat([part.reshape(-1) for part in parts])
        if weight == 0:
            flat.zero_()
        elif weight != 1.0:
            flat.mul_(weight)
        group.bounded(group.column.allreduce([flat])).wait()
        summed = torch.split(flat, [part.numel() for part in parts])
        torch._foreach_copy_(parts, [one.view_as(part) for one, part in zip(summed, parts)])

    @torch.no_grad()
    def own_square(self, parameters: Sequence[torch.Tensor]) -> float:
        """The sum of the squares of this process' share of the gradients: a part that several
        processes have counts once."""
        with_gradient = [parameter for parameter in parameters if parameter.grad is not None]
        parts = [local(parameter.grad) for parameter in with_gradient]
        if not parts:
            return 0.0
        copies = [self._views.copies_of(parameter) for parameter in with_gradient]
        device = parts[0].device
        squares = torch.stack([norm.to(device, torch.float64) for norm in norms_of(parts)]).square()
        return float((squares / torch.tensor(copies, dtype=torch.float64, device=device)).sum())

    def numbers(
        self, loss: Number | None, weight: Number, step: Step, reduction: str, parameters: Sequence[torch.Tensor]
    ) -> tuple[Number, Number, float]:
        """This process' share of the loss and of its weight, and the norm of the whole gradient.

        Processes with the same samples may all know the loss, as in tensor parallelism, or one of
        them, as in a pipeline: their mean counts.
        """
        copied = self._views.copied
        digests = [self._copied.get(those, 0.0) if shard == self._replica.shard else 0.0 for those in copied for shard in those]
        square, *others = self._replica.sum([self.own_square(parameters), *self._knows(loss), *digests])
        self._check_copies(others[self._replica.size :], parameters)
        return *self._share(loss, weight, step, reduction, others[: self._replica.size]), _root(square)

    def numbers_of_slice(self, loss: Number | None, weight: Number, step: Step, reduction: str) -> tuple[Number, Number]:
        """This process' share of the loss of a slice and of its weight."""
        return self._share(loss, weight, step, reduction, self._replica.sum(self._knows(loss)))

    def totals(self, loss: Number, weight: Number, parameters: Sequence[torch.Tensor]) -> tuple[float, float, float]:
        """The loss and the weight of all processes of the replica, which have their sums over all
        slices, and the norm of the whole gradient."""
        total, all_weight, square = self._replica.sum([float(loss), float(weight), self.own_square(parameters)])
        return total, all_weight, _root(square)

    def _knows(self, loss: Number | None) -> list[float]:
        """Whether this process knows the loss, at its place in the replica."""
        knows = [0.0] * self._replica.size
        knows[self._replica.shard] = float(loss is not None)
        return knows

    def _share(
        self, loss: Number | None, weight: Number, step: Step, reduction: str, knows: Sequence[float]
    ) -> tuple[Number, Number]:
        sources = self._replica.sources(knows)
        if not sources:
            raise ConfigError(
                "job.commit(None, ...) in all processes with the same samples: give the loss in the process that has computed it"
            )
        if loss is None or self._replica.shard not in sources:
            return 0.0, 0.0
        return loss_sum(loss, step, reduction) / len(sources), weight / len(sources)


def _root(square: float) -> float:
    return math.sqrt(square) if square >= 0 else math.nan


def clip(parameters: Sequence[torch.Tensor], norm: float, most: float | None) -> float:
    """Clips gradients of this norm as PyTorch does. Returns the norm."""
    if (factor := clip_factor(norm, most)) != 1.0:
        multiply_gradients(parameters, factor)
    return norm


def _complete(parameters: Sequence[torch.Tensor]) -> None:
    """Completes gradients whose sums over the processes of the replica are pending, as sequence
    parallelism leaves them. The optimizer would do so later; norms need it now."""
    for parameter in parameters:
        gradient: Any = parameter.grad
        if gradient is not None and is_sharded(gradient) and any(one.is_partial() for one in gradient.placements):
            own: Any = parameter
            parameter.grad = gradient.redistribute(placements=own.placements)


def _align(parameters: Sequence[torch.Tensor], group: Group) -> None:
    """Makes the same parameters have gradients in all replicas: a pass may have left some out."""
    device = group.device
    has = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.float32).to(device)
    group.bounded(group.column.allreduce([has])).wait()
    for parameter, number in zip(parameters, has.tolist()):
        if number > 0 and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
