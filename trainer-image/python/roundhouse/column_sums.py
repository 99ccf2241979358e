"""Sums the gradients of a step over the replicas, when it ends.

The sums are over what each process has of the gradients, so no parallelism has to be known here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ._native import fault_point
from .errors import ConfigError
from .gradients import Gradients
from .local_parts import is_sharded, local
from .replica import Replica
from .step_numbers import Number
from .updates import loss_sum

if TYPE_CHECKING:
    from .groups import Group
    from .sampler import Step
    from .state import Row

# Bytes of gradients that are summed at once.
_BUCKET = 64 << 20


class ColumnSums:
    """Sums the gradients of a step over the processes with the same shard, one of each replica."""

    def __init__(self, gradients: Gradients, replica: Replica, row: Row):
        self._gradients = gradients
        self._replica = replica
        self._row = row

    @torch.no_grad()
    def sum(self, parameters: Sequence[torch.Tensor], group: Group | None) -> None:
        """Sums what this process has of the gradients. An error of a lost peer is recorded, and the
        step is dropped later."""
        self._gradients.computed_at = time.perf_counter()
        _complete(parameters)
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
            gradients = [part for part in (local(p.grad) for p in trained if p.grad is not None) if part.numel()]
            for bucket in _buckets(gradients):
                self._sum(bucket, weight, group if column is not None else None)
        except RuntimeError as error:
            self._gradients.broke(error)

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
        norms = [torch.linalg.vector_norm(part, dtype=torch.float64) for part in parts]
        if not norms:
            return 0.0
        shared_views = self._row.shared_views
        assert shared_views is not None
        copies = [shared_views.copies_of(parameter) for parameter in with_gradient]
        device = norms[0].device
        squares = torch.stack([norm.to(device) for norm in norms]).square()
        return float((squares / torch.tensor(copies, dtype=torch.float64, device=device)).sum())

    def numbers(
        self, loss: Number | None, weight: Number, step: Step, reduction: str, parameters: Sequence[torch.Tensor]
    ) -> tuple[Number, Number, float]:
        """This process' share of the loss and of its weight, and the norm of the whole gradient.

        Processes with the same samples may all know the loss, as in tensor parallelism, or one of
        them, as in a pipeline: their mean counts.
        """
        replica = self._replica
        knows = [0.0] * replica.size
        knows[replica.shard] = float(loss is not None)
        square, *knows = replica.sum([self.own_square(parameters), *knows])
        voices = replica.voices(knows)
        if not voices:
            raise ConfigError(
                "job.commit(None, ...) in all processes with the same samples: give the loss in the process that has computed it"
            )
        norm = math.sqrt(square) if square >= 0 else math.nan
        if loss is None or replica.shard not in voices:
            return 0.0, 0.0, norm
        return loss_sum(loss, step, reduction) / len(voices), weight / len(voices), norm


def clip(parts: Sequence[torch.Tensor], norm: float, most: float | None) -> float:
    """Clips gradients of this norm as PyTorch does. Returns the norm."""
    if most is not None and parts and most < norm + 1e-6 and math.isfinite(norm):
        torch._foreach_mul_(list(parts), most / (norm + 1e-6))
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


def _buckets(parts: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Tensors of one type and device, in their order, that together have a limited size."""
    open_: dict[Any, list[torch.Tensor]] = {}
    sizes: dict[Any, int] = {}
    for part in parts:
        key = part.dtype, part.device
        own = part.numel() * part.element_size()
        if key in open_ and sizes[key] + own > _BUCKET:
            yield open_.pop(key)
            sizes[key] = 0
        open_.setdefault(key, []).append(part)
        sizes[key] = sizes.get(key, 0) + own
    yield from open_.values()
