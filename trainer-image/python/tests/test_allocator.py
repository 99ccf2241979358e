"""The page faults of a process that allocates and frees the same memory in each step."""
import os
import subprocess
import sys

STEPS, BLOCKS, BLOCK_BYTES = 20, 32, 1 << 20
PAGE_BYTES = 4096

# Blocks like the gradients of a small model.
SCRIPT = f"""
import resource
import torch
from roundhouse.allocator import keep_freed_memory

keep_freed_memory()

def step():
    blocks = [torch.ones({BLOCK_BYTES}, dtype=torch.uint8) for _ in range({BLOCKS})]

step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({STEPS}):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


# The thresholds with which glibc starts. What an import frees can raise them, and a variable keeps
# them as they are.
LOW = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}


def page_faults(variables):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def test_memory_of_a_step_is_kept_for_the_next_one():
    of_one_step = BLOCKS * BLOCK_BYTES // PAGE_BYTES
    assert page_faults({}) < of_one_step


def test_variables_of_the_user_set_the_thresholds():
    of_one_step = BLOCKS * BLOCK_BYTES // PAGE_BYTES
    assert page_faults(LOW) > STEPS // 2 * of_one_step
