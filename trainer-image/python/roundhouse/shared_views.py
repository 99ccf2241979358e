"""The views of a state that the processes of a replica have together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .digests import sum_of_words
from .errors import StateError
from .local_parts import Part
from .replica import Replica

# Index of a view in the table; start, length, count and stride of its runs; whether this process
# writes them to checkpoints.
Owned = tuple[int, int, int, int, int, bool]


class SharedViews:
    """What each process of a replica has of the state, which all of them agree on when they join.

    ``table``: name, type, whole shape and bytes of each view of any process. ``own``: the views of
    this process, first those that it writes.
    """

    def __init__(self, replica: Replica, views: Sequence[Any]):
        self._replica = replica
        described = [[view.name, view.dtype, *_part(view)] for view in views]
        of_all = replica.gather("views", described)
        table: dict[str, tuple[str, list[int], int]] = {}
        holders: dict[str, list[tuple[int, list[Any]]]] = {}
        for shard, those in enumerate(of_all):
            for name, dtype, shape, num_bytes, runs in those:
                known = table.setdefault(name, (dtype, shape, num_bytes))
                if known != (dtype, shape, num_bytes):
                    raise StateError(
                        f"{name} of rh.join(state=...) is {shape} of {dtype} in process {shard} of the replica, and {known[1]} of "
                        f"{known[0]} in another one: give tensors of different processes different names"
                    )
                holders.setdefault(name, []).append((shard, runs))
        for name, (_, _, num_bytes) in table.items():
            _check_cover(name, num_bytes, [runs for _, runs in holders[name]])
        # In an order that does not depend on which process has a tensor: any number of stages reads
        # a checkpoint.
        self.table = [(name, *table[name]) for name in sorted(table)]
        places = {name: index for index, name in enumerate(sorted(table))}
        # The processes with the same part of a view.
        same = {view.name: [shard for shard, runs in holders[view.name] if runs == _listed(view)] for view in views}
        self._check_copies([view for view in views if hasattr(view, "tensor")], same)
        self._copies = {id(view.tensor): len(same[view.name]) for view in views if hasattr(view, "tensor")}
        # The place of each tensor in the table, which all processes have.
        self._place_of = {id(view.tensor): places[view.name] for view in views if hasattr(view, "tensor")}
        # For each tensor, the processes that have copies of a part of it and each compute a part of
        # their gradient. All processes know all of these sets, in the same order.
        copied = {name: _beside(replica, those) for name, those in holders.items()}
        self.copied = sorted({one for sets in copied.values() for one in sets})
        self._copied = {
            id(view.tensor): one for view in views if hasattr(view, "tensor") for one in copied[view.name] if replica.shard in one
        }
        written = {view.name: same[view.name][0] == replica.shard for view in views}
        self.own = sorted(views, key=lambda view: (not written[view.name], places[view.name]))
        self._owned: list[Owned] = [
            (places[view.name], *runs, written[view.name]) for view in self.own for runs in _part(view).runs
        ]

    def _check_copies(self, tensors: Sequence[Any], same: dict[str, list[int]]) -> None:
        """Raises StateError if processes that have the same part of a tensor have other values in
        it, as two stages of a pipeline with tensors of one name. ``same``: the processes with the
        same part, by the name of the tensor."""
        own = {view.name: int(sum_of_words(view.read())) for view in tensors if len(same[view.name]) > 1}
        for shard, others in enumerate(self._replica.gather("values", own)):
            for name, number in own.items():
                if shard in same[name] and others[name] != number:
                    raise StateError(
                        f"{name} of rh.join(state=...) has other values in process {shard} of the replica: call torch.manual_seed "
                        "with one number before the model is made, and give tensors of different pipeline stages different names"
                    )

    def described(self) -> tuple[int, int, int, list[Owned]]:
        """Index of the process, number of processes, number of the replica's life, and the bytes of
        this process in the order of its row."""
        return self._replica.shard, self._replica.size, self._replica.number, self._owned

    def copied_in(self, tensor: Any) -> tuple[int, ...]:
        """The processes with the same part of a tensor of which each has a gradient of its own, in
        :attr:`copied`; empty if this process alone has it."""
        return self._copied.get(id(tensor), ())

    def place_of(self, tensor: Any) -> int:
        """The place of a tensor of the state in the table."""
        return self._place_of.get(id(tensor), 0)

    def copies_of(self, tensor: Any) -> int:
        """How many processes of the replica have the same part of a tensor of the state."""
        return self._copies.get(id(tensor), 1)


def _beside(replica: Replica, those: list[tuple[int, list[Any]]]) -> list[tuple[int, ...]]:
    """The sets of processes that have the same part of a tensor and differ at most in their part of
    the sequence and in their stage. ``those``: the processes that have parts, with the runs of each
    part."""
    sets: dict[Any, list[int]] = {}
    alike = replica.layout.alike
    for shard, runs in those if len(set(alike)) < len(alike) else ():
        sets.setdefault((alike[shard], tuple(map(tuple, runs))), []).append(shard)
    return [tuple(shards) for shards in sets.values() if len(shards) > 1]


def _part(view: Any) -> Part:
    known = getattr(view, "part", None)
    if known is not None:
        return Part(*known)
    return Part(view.shape, view.num_bytes, [(0, view.num_bytes, 1, view.num_bytes)] if view.num_bytes else [])


def _listed(view: Any) -> list[Any]:
    return [list(runs) for runs in _part(view).runs]


def _check_cover(name: str, num_bytes: int, parts: list[list[Any]]) -> None:
    different = {tuple(map(tuple, runs)) for runs in parts}
    found = sum(length * count for runs in different for _, length, count, _ in runs)
    if found != num_bytes:
        raise StateError(
            f"{name} of rh.join(state=...) has {num_bytes} bytes, and the processes of a replica have {found} different ones: its "
            "placements are not those of a whole tensor, once in each replica"
        )
