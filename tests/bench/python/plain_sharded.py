"""One rank of the training with FSDP2 alone, on two processes, or on pairs of them that hold copies
of the model (HSDP). Arguments: the model, and the port of the benchmark."""
import os
import sys

import torch
import torch.distributed as dist
from models import loss_of, optimizer_of, prepared
from pace import Pace
from share import Share
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

NAME, PORT = sys.argv[1], int(sys.argv[2])
RANK, WORLD, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), 2

torch.set_num_threads(1)
model, dataset, batch = prepared(NAME)
dist.init_process_group("gloo")
if WORLD == SIZE:
    mesh = init_device_mesh("cpu", (SIZE,))
else:
    mesh = init_device_mesh("cpu", (WORLD // SIZE, SIZE), mesh_dim_names=("replicate", "shard"))
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = optimizer_of(model)
pace = None
for x, y in torch.utils.data.DataLoader(dataset, batch_sampler=Share(batch, RANK, WORLD)):
    loss = loss_of(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    pace = pace or Pace(PORT, RANK)
    if not pace.continues(loss):
        break
dist.destroy_process_group()
