"""Sums over the slices of a step that are equal bit for bit for every number of ranks.

Floating-point addition is not associative, so a sum depends on the order of its terms. Here they
are added along one binary tree over the slices, as in the built-in trainer
(``trainer-image/elastic/src/slices.rs``): the node of level l and index i is the sum of the slices
from i * 2**l to (i + 1) * 2**l. A rank owns consecutive slices, and adds up the nodes that it owns
whole. What is left needs the nodes of other ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from ._native import SampleSchedule

Value = TypeVar("Value")


class Node(NamedTuple):
    """A node of the tree. Level 0 is a slice."""

    level: int
    place: int

    @property
    def parent(self) -> Node:
        """The node of which this is a half."""
        return Node(self.level + 1, self.place // 2)

    def slices(self, num_slices: int) -> tuple[int, int]:
        """The first slice of the node, and the one after its last."""
        return min(self.place << self.level, num_slices), min((self.place + 1) << self.level, num_slices)


def owned(num_slices: int, rank: int, world_size: int) -> tuple[int, int]:
    """The first slice of a rank, and the one after its last."""
    return SampleSchedule.part(0, num_slices, rank, world_size)


class Partial(Generic[Value]):
    """The sums of the slices of one rank.

    ``owned``: the first of these slices, and the one after the last. ``add(left, right)`` returns a
    sum. Its calls depend on the tree alone.
    """

    def __init__(self, num_slices: int, owned: tuple[int, int], add: Callable[[Value, Value], Value]):
        self._num_slices = num_slices
        self._first, self._end = owned
        self._add = add
        # Nodes that wait for others, in order: about log2(num_slices) of them.
        self.waiting: list[tuple[Node, Value]] = []

    def put(self, node: Node, value: Value) -> None:
        """Adds the next node of the rank, such as a slice."""
        while (own := node.slices(self._num_slices)) != (0, self._num_slices):
            start, end = node.parent.slices(self._num_slices)
            if start < self._first or end > self._end:
                break
            if node.place % 2 == 1:
                value = self._add(self.waiting.pop()[1], value)
            elif (start, end) != own:
                break  # The right neighbour comes later.
            node = node.parent
        self.waiting.append((node, value))


def nodes_of(num_slices: int, owned: tuple[int, int]) -> list[Node]:
    """The nodes that the owner of these slices cannot add up further."""
    partial: Partial[None] = Partial(num_slices, owned, lambda left, right: None)
    for index in range(*owned):
        partial.put(Node(0, index), None)
    return [node for node, _ in partial.waiting]


def total(num_slices: int, nodes: Iterable[tuple[Node, Value]], add: Callable[[Value, Value], Value]) -> Value:
    """The sum of all slices, from the nodes of all ranks in order."""
    partial = Partial(num_slices, (0, num_slices), add)
    for node, value in nodes:
        partial.put(node, value)
    ((_, value),) = partial.waiting
    return value
