"""The buffers that all ranks have after a step, such as the running statistics of batch
normalization: which process they come from, in a job of ranks or of replicas."""

from __future__ import annotations

import torch

from .buffers import Buffers
from .generations import Generations
from .sampler import Step


class SharedBuffers:
    """Broadcasts the buffers of one rank or replica when a step ends."""

    def __init__(self, buffers: Buffers, generations: Generations):
        self._buffers = buffers
        self._generations = generations
        self._gradients = generations.gradients
        self._replica = generations.replica
        # Number of bytes of the buffers of each process of the replica.
        self._num_bytes = [] if self._replica is None else self._replica.gather("buffers", buffers.num_bytes)

    def share(self, step: Step) -> torch.Tensor | None:
        """Broadcasts buffers, and returns the bytes that all ranks then have."""
        group, replica = self._generations.group, self._replica
        if group is None:
            return None
        size = 1 if replica is None else replica.size
        source, part = self._source(step, group.size // size)
        if replica is not None and replica.num_data == 1:
            # Processes with the same samples may have other modules and so other buffers.
            if group.column is None:
                return None
            return self._buffers.share(group, source, self._gradients, (group.column, group.rank // size))
        if replica is not None and replica.num_data < size:
            parts = [(source * size + shards[part], self._num_bytes[shards[0]]) for shards in replica.layout.parts]
            return self._buffers.share_parts(group, parts, replica.layout.part_of[replica.shard], self._gradients)
        return self._buffers.share(group, source * size + part % size, self._gradients)

    def _source(self, step: Step, number: int) -> tuple[int, int]:
        """Whose buffers all ranks get: the index of a rank or, of ``number`` of them, of a replica,
        and which of its processes with other samples, 0 or -1 for the first or the last one."""
        sampler = self._generations.sampler
        if sampler is not None and sampler.slices is not None:
            # The rank or replica of the first slice.
            ends = [sampler.owned(step.global_size, rank, step.world_size)[1] for rank in range(step.world_size)]
            return next(rank for rank, end in enumerate(ends) if end > 0) // sampler.num_parts, 0
        # Running statistics are those of rank 0, as in DDP, or of the last rank if rank 0 has no
        # samples.
        return (0, 0) if step.global_size >= step.world_size else (number - 1, -1)
