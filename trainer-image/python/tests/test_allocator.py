"""The page faults of a process that allocates and frees the same memory in each step."""
import subprocess
import sys

STEPS, BLOCKS, BLOCK_BYTES = 20, 32, 1 << 20
PAGE_BYTES = 4096

# Blocks like the gradients of a small model.
SCRIPT = f"""
import resource, sys
import torch
from roundhouse.allocator import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()

def step():
    blocks = [torch.ones({BLOCK_BYTES}, dtype=torch.uint8) for _ in range({BLOCKS})]

step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({STEPS}):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how):
    done = subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_memory_of_a_step_is_kept_for_the_next_one():
    of_one_step = BLOCKS * BLOCK_BYTES // PAGE_BYTES
    assert page_faults("returned") > STEPS // 2 * of_one_step
    assert page_faults("kept") < of_one_step
