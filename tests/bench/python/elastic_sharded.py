"""One process of a replica that shares the model by FSDP2, with roundhouse. Arguments: the model,
and the port of the benchmark."""
import sys

import torch
from models import SEED, loss_of, optimizer_of, prepared
from pace import Pace
from torch.distributed.fsdp import fully_shard

import roundhouse as rh

NAME, PORT = sys.argv[1], int(sys.argv[2])

model, dataset, batch = prepared(NAME)
mesh = rh.replica_mesh()
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = optimizer_of(model)
with rh.join(state={"model": model, "optimizer": optimizer}) as job:
    torch.set_num_threads(1)
    sampler = job.sampler(len(dataset), batch, steps=10_000_000, seed=SEED)
    net = job.model(model)
    pace = None
    for x, y in job.steps(dataset, sampler):
        loss = loss_of(net(x), y)
        loss.backward()
        job.commit(loss, optimizer)
        pace = pace or Pace(PORT, job.rank)
        if not pace.continues(loss):
            break
