"""The memory that the allocator of glibc keeps for the next step."""

from __future__ import annotations

import torch

# glibc raises its thresholds when a block is freed that was mapped for itself alone, up to 32 MiB
# with its header (DEFAULT_MMAP_THRESHOLD_MAX in malloc.c).
_BLOCK_BYTES = (32 << 20) - (64 << 10)


def keep_freed_memory() -> None:
    """Raises the thresholds of glibc to the largest values that it would choose itself.

    Smaller blocks than 32 MiB then come from the heap, and glibc returns memory at the top of the
    heap only above 64 MiB. Freed memory below a block in use stays in any case.

    A backward pass frees gradients of a few megabytes, and the next step allocates them again.
    glibc starts with thresholds of 128 kB and adapts them to the blocks that it sees freed. With
    low thresholds it returns the memory, and the kernel clears each page again in each step.
    Nothing changes if a variable such as ``MALLOC_TRIM_THRESHOLD_`` sets the thresholds, or with
    another allocator.
    """
    torch.empty(_BLOCK_BYTES, dtype=torch.uint8)
