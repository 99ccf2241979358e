"""A training that uses a process group of an ended generation. Argument: HOW, and whether it does
so in ``with batch:``.

"mesh", "part", "world": a group that the script created in its first step and kept. "dropped",
"dropped-part": the group of the generation, in a step that ``commit`` has dropped.
"""

import contextlib
import sys

import roundhouse as rh
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

HOW, IS_CAUGHT = sys.argv[1], sys.argv[2] == "caught"

torch.manual_seed(3)
points = torch.randn(100, 8)
dataset = torch.utils.data.TensorDataset(points, (points[:, 0] > 0).long())
model = torch.nn.Linear(8, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
kept = None


def made():
    if HOW == "mesh":
        return init_device_mesh("cpu", (job.world_size,))
    return dist.new_group() if "part" in HOW else job.group


def make(job):
    global kept
    kept = made()


def num_ranks():
    number = torch.ones(1)
    dist.all_reduce(number, group=job.group if HOW == "dropped" else kept.get_group() if HOW == "mesh" else kept)
    return int(number)


with rh.join(state={"model": model, "opt": opt}) as job:
    net = job.model(model)
    if HOW == "dropped-part":
        job.on_generation(make)
    for batch in job.steps(dataset, job.sampler(len(dataset), 16, steps=60, seed=5)):
        with batch if IS_CAUGHT else contextlib.nullcontext():
            loss = torch.nn.functional.cross_entropy(net(batch.x), batch.y)
            loss.backward()
            if "dropped" in HOW:
                job.commit(loss, opt)
            kept = kept or made()
            assert num_ranks() == job.world_size
            if "dropped" not in HOW:
                job.commit(loss, opt)
