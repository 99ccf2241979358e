"""The places of the processes of a replica in its mesh: which of them have the same samples, and
which have the same part of the model."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Dimensions of a mesh whose processes compute the same samples.
SAME_SAMPLES = ("tp", "pp", "cp")
# Those along which each process computes a part of the gradient of a copied tensor.
_OWN_GRADIENTS = ("pp", "cp")
_STAGES = "pp"

Place = tuple[int, ...]


class Layout:
    """The layout of a mesh. ``data``: the dimensions whose processes compute other samples."""

    def __init__(self, names: Sequence[str], shape: Sequence[int], data: Sequence[str]):
        places = [_place(shard, shape) for shard in range(math.prod(shape))]
        self.num_data = math.prod(size for name, size in zip(names, shape) if name in data)
        # The samples that each process computes, from 0.
        self.data_indices = [_index([(size, at) for name, size, at in zip(names, shape, place) if name in data]) for place in places]
        # For each part of the model the processes that have it, or shards of it, with other
        # samples; and the index of the part of each process.
        parts = [tuple(at for name, at in zip(names, place) if name not in data) for place in places]
        of_part = {part: [shard for shard, other in enumerate(parts) if other == part] for part in dict.fromkeys(parts)}
        self.parts = list(of_part.values())
        self.part_of = [list(of_part).index(part) for part in parts]
        # The place of each process in the dimensions along which copies of a tensor get the same
        # gradient.
        self.alike = [
            tuple(at for name, at in zip(names, place) if name in data or name not in _OWN_GRADIENTS) for place in places
        ]
        # Whether processes have copies that get different gradients before the script sums them.
        self.has_own_gradients = any(size > 1 and name in _OWN_GRADIENTS for name, size in zip(names, shape) if name not in data)
        self._stages = [place[names.index(_STAGES)] if _STAGES in names else 0 for place in places]

    def sources(self, shard: int, knows: Sequence[float]) -> list[int]:
        """The processes whose values count for the samples of ``shard``: those with these samples
        that know the values. Of several stages of a pipeline only the last one that knows them
        counts. ``knows``: for each process, 0 if it does not know the values.

        Empty for all shards if no process knows the values of some samples.
        """
        known = [other for other, number in enumerate(knows) if number]
        if len({self.data_indices[other] for other in known}) < self.num_data:
            return []
        known = [other for other in known if self.data_indices[other] == self.data_indices[shard]]
        last = max(self._stages[other] for other in known)
        return [other for other in known if self._stages[other] == last]


def _place(shard: int, shape: Sequence[int]) -> Place:
    """The place of a process in a mesh of this shape."""
    at = []
    for size in reversed(shape):
        at.append(shard % size)
        shard //= size
    return tuple(at[::-1])


def _index(places: Sequence[tuple[int, int]]) -> int:
    """The number of a place. ``places``: size and place of each dimension."""
    index = 0
    for size, at in places:
        index = index * size + at
    return index
