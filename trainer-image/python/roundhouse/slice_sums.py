"""The gradients of a step with slices: kept apart for each node of the tree, and summed over the
ranks when the step ends.

A node is a list of tensors: the gradient of each trained parameter, what the slice has changed in
each buffer, and one row of numbers. The ranks exchange them in buckets. Each rank gets a chunk of
all nodes, adds up the rest of the tree for it (:mod:`roundhouse.slices`), and the ranks gather the
chunks. With n bytes of gradients, W ranks and k nodes that are left on a rank, it sends
(k + 1) * n * (W - 1) / W bytes, where a ring sends 2 * n * (W - 1) / W. During a pass a rank keeps
about as many nodes of n bytes as the logarithm of the number of slices to the base 2.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ._native import fault_point
from .buckets import buckets
from .buffers import Buffers
from .errors import ConfigError
from .gradients import Gradients
from .local_parts import is_sharded, local
from .replica import Replica
from .sampler import Sampler, Step
from .slices import Node, Partial, nodes_of, owned, total
from .step_numbers import Number
from .updates import wide

if TYPE_CHECKING:
    from .groups import Group

Tensors = list[torch.Tensor]


class Ranks(NamedTuple):
    """The ranks that exchange nodes."""

    group: Group
    backend: Any
    rank: int
    size: int


class SliceSums:
    """The sums of the current step's slices that this rank has computed."""

    def __init__(self, gradients: Gradients, buffers: Buffers, replica: Replica | None, device: torch.device):
        self._gradients = gradients
        self._buffers = buffers
        self._replica = replica
        self._device = device
        self._partial: Partial[Tensors] | None = None
        self._parameters: list[torch.Tensor] = []
        # The trained parameters that have had a gradient in a slice of this rank.
        self._has: set[int] = set()

    @property
    def has_begun(self) -> bool:
        """Whether a slice of the step was added, and the step is not complete."""
        return self._partial is not None

    def forget(self) -> None:
        """Drops the sums of an incomplete step."""
        self._partial = None
        self._parameters = []
        self._has.clear()

    @torch.no_grad()
    def add(self, step: Step, sampler: Sampler, parameters: Sequence[torch.Tensor], loss: Number, weight: Number) -> None:
        """Adds the slice that was just computed. Afterwards the parameters have no gradients, and
        the buffers are those from before the step."""
        trained = list({id(p): p for p in parameters if p.requires_grad}.values())
        if self._partial is None:
            self._parameters = trained
            number, share = sampler.num_slices(step.global_size), sampler.owned(step.global_size, step.rank, step.world_size)
            self._partial = Partial(number, share, _added)
        elif [id(p) for p in trained] != [id(p) for p in self._parameters]:
            raise ConfigError(
                f"job.commit of slice {step.slice} trains other parameters than that of the slice before: give the commits of a step "
                "the same optimizers, and freeze layers only after a commit that returned True"
            )
        moves = self._buffers.end_slice(step.slice, sampler.share_of_slice(step))
        if step.slice is None:
            # This rank has no slice, and the gradients of its spare sample do not count.
            for parameter in trained:
                parameter.grad = None
            return
        present = [parameter.grad is not None for parameter in trained]
        gradients = [_taken(parameter) for parameter in trained]
        # With different samples the backward pass has weighted the gradients within the replica.
        is_weighted = self._replica is not None and self._replica.num_data > 1
        factor = self._gradients.weight_of_replica if is_weighted else self._gradients.weight
        if factor != 1.0 and gradients:
            torch._foreach_mul_(gradients, factor)
        self._has.update(id(parameter) for parameter, has in zip(trained, present) if has)
        numbers = _row_of([loss, _valid(weight), *present], self._device)
        self._partial.put(Node(0, step.slice), [*gradients, *moves, numbers])

    @torch.no_grad()
    def sum(self, step: Step, sampler: Sampler, group: Group | None) -> tuple[Number, Number]:
        """Sums all slices over the ranks: gradients, buffers, and the loss and the weight, which
        are returned. An error of a lost peer is recorded, and the step is dropped later."""
        assert self._partial is not None
        self._gradients.computed_at = time.perf_counter()
        nodes, parameters = self._partial.waiting, self._parameters
        number = sampler.num_slices(step.global_size)
        unknown = [index for index, parameter in enumerate(parameters) if id(parameter) not in self._has]
        self.forget()
        if group is not None:
            fault_point("Backward", group.rank, step.number)
        moved = self._buffers.moving()
        layout = [*(torch.empty_like(local(p), dtype=wide(p.dtype), device="meta") for p in parameters), *moved]
        layout.append(torch.empty(len(parameters) + 2, dtype=torch.float64, device="meta"))
        sums: dict[int, torch.Tensor] = {}
        try:
            for index, summed in _totals(number, nodes, layout, self._ranks(group), self._device):
                if index < len(parameters):
                    # In memory of its own also in a process alone: a norm depends on the layout.
                    own = parameters[index]
                    own.grad = torch.empty_like(own)
                    part = local(own.grad)
                    part.copy_(summed.view(part.shape))
                else:
                    sums[index - len(parameters)] = summed
        except RuntimeError as error:
            self._gradients.broke(error)
            return 0.0, 0.0
        numbers = sums.pop(len(moved))
        self._buffers.move([sums[index] for index in range(len(moved))])
        if unknown:
            # The host reads these numbers only if no slice of this rank had the gradient.
            counts = numbers[2:].tolist()
            for index in unknown:
                if counts[index] == 0:
                    parameters[index].grad = None
        return numbers[0], numbers[1]

    def _ranks(self, group: Group | None) -> Ranks | None:
        """The ranks among which the slices are divided: all, or one of each replica."""
        if group is None or self._replica is None:
            return None if group is None else Ranks(group, group.backend, group.rank, group.size)
        size = self._replica.size
        return None if group.column is None else Ranks(group, group.column, group.rank // size, group.size // size)


def _added(left: Tensors, right: Tensors) -> Tensors:
    torch._foreach_add_(left, right)
    return left


def _taken(parameter: torch.Tensor) -> torch.Tensor:
    """Takes the gradient from a parameter; zeros if it has none."""
    gradient: Any = parameter.grad
    parameter.grad = None
    if gradient is None:
        return torch.zeros_like(local(parameter), dtype=wide(parameter.dtype))
    if gradient.layout != torch.strided:
        raise ConfigError(
            f"job.sampler(..., slices=...): a gradient of shape {list(gradient.shape)} is sparse: leave out sparse=True of the embedding"
        )
    own: Any = parameter
    if is_sharded(gradient) and gradient.placements != own.placements:
        gradient = gradient.redistribute(placements=own.placements)
    return local(gradient).detach().to(wide(parameter.dtype))


def _valid(weight: Number) -> Number:
    """The weight, or NaN if it is negative: a sum over slices could hide that."""
    if isinstance(weight, torch.Tensor):
        return torch.where(weight >= 0, weight.detach().to(torch.float64), torch.nan)
    return weight if weight >= 0 else float("nan")


def _row_of(numbers: Sequence[Number], device: torch.device) -> torch.Tensor:
    row = torch.tensor([0.0 if isinstance(number, torch.Tensor) else float(number) for number in numbers], dtype=torch.float64)
    row = row.to(device, non_blocking=True)
    for index, number in enumerate(numbers):
        if isinstance(number, torch.Tensor):
            row[index : index + 1].copy_(number.detach().reshape(1))
    return row


def _totals(
    num_slices: int, nodes: list[tuple[Node, Tensors]], layout: Sequence[torch.Tensor], ranks: Ranks | None, device: torch.device
) -> Iterator[tuple[int, torch.Tensor]]:
    """The sum of each tensor of the nodes over all slices, with its index. Empties the nodes."""
    if ranks is None:
        sums = total(num_slices, nodes, _added)
        nodes.clear()
        while sums:
            yield len(sums) - 1, sums.pop()
        return
    shares = [nodes_of(num_slices, owned(num_slices, rank, ranks.size)) for rank in range(ranks.size)]
    for indices in buckets(layout):
        parts = [[tensors[index] for index in indices] for _, tensors in nodes]
        for _, tensors in nodes:
            for index in indices:
                tensors[index] = _USED
        lengths = [layout[index].numel() for index in indices]
        summed = _exchanged(num_slices, parts, sum(lengths), layout[indices[0]].dtype, shares, ranks, device)
        yield from zip(indices, torch.split(summed, lengths))


_USED = torch.empty(0)


def _exchanged(
    num_slices: int,
    parts: list[Tensors],
    length: int,
    kind: torch.dtype,
    shares: Sequence[Sequence[Node]],
    ranks: Ranks,
    device: torch.device,
) -> torch.Tensor:
    """The sum of one bucket of all nodes of all ranks. ``parts``: the bucket of each node of this
    rank. ``length``: its number of elements. ``shares``: the nodes of each rank."""
    size = ranks.size
    chunk = max(-(-length // size), 1)
    # Ordered by rank and node: the elements for one rank are contiguous.
    sent = torch.zeros(size, len(parts), chunk, dtype=kind, device=device)
    for index, tensors in enumerate(parts):
        row = torch.cat([tensor.reshape(-1) for tensor in tensors])
        tensors.clear()
        whole = length // chunk
        sent[:whole, index] = row[: whole * chunk].view(whole, chunk)
        if whole < size:
            sent[whole, index, : length - whole * chunk] = row[whole * chunk :]
    received = torch.empty(sum(map(len, shares)) * chunk, dtype=kind, device=device)
    _trade(ranks, sent.view(-1), received, chunk, [len(nodes) for nodes in shares])
    del sent
    theirs = torch.split(received, chunk)
    own = total(num_slices, zip((node for nodes in shares for node in nodes), ([one] for one in theirs)), _added)[0]
    gathered = torch.empty(size * chunk, dtype=kind, device=device)
    ranks.group.bounded(ranks.backend._allgather_base(gathered, own.contiguous())).wait()
    return gathered[:length]


def _trade(ranks: Ranks, sent: torch.Tensor, received: torch.Tensor, chunk: int, num_nodes: Sequence[int]) -> None:
    """Sends each rank its chunks of this rank's nodes, and receives those of all ranks."""
    backend = ranks.backend
    to, lengths = [num_nodes[ranks.rank] * chunk] * ranks.size, [number * chunk for number in num_nodes]
    if ranks.group.waits is not None:
        ranks.group.bounded(backend.alltoall_base(received, sent, lengths, to)).wait()
        return
    # Over NCCL sends and receives in one launch: see docs/decisions/038-nccl-aborts.md.
    parts, places = torch.split(sent, to), torch.split(received, lengths)
    places[ranks.rank].copy_(parts[ranks.rank])
    backend._start_coalescing()
    try:
        for rank in range(ranks.size):
            if rank != ranks.rank and lengths[rank]:
                backend.recv([places[rank]], rank, 0)
            if rank != ranks.rank and to[rank]:
                backend.send([parts[rank]], rank, 0)
    finally:
        work = backend._end_coalescing()
    work.wait()
