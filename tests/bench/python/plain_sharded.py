"""One rank of the training with FSDP2 alone, on two processes, or on pairs of them that hold copies
of the model (HSDP). Arguments: the model, and the port of the benchmark."""
import os
import sys

import torch
import torch.distributed as dist
from loops import shard, train_plain
from models import prepared
from torch.distributed.device_mesh import init_device_mesh

NAME, PORT = sys.argv[1], int(sys.argv[2])
RANK, WORLD, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), 2

torch.set_num_threads(1)
model, dataset, batch = prepared(NAME)
dist.init_process_group("gloo")
if WORLD == SIZE:
    mesh = init_device_mesh("cpu", (SIZE,))
else:
    mesh = init_device_mesh("cpu", (WORLD // SIZE, SIZE), mesh_dim_names=("replicate", "shard"))
shard(model, mesh)
train_plain(model, dataset, batch, PORT, RANK, WORLD)
dist.destroy_process_group()
