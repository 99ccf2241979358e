"""The loops of the scripts, with the same model, samples and optimizer, with and without
roundhouse."""
import torch
from models import SEED, loss_of, optimizer_of
from pace import Pace
from share import Share
from torch.distributed.fsdp import fully_shard

import roundhouse as rh


def shard(model, mesh):
    """Applies FSDP2 to the blocks of a model, and to the rest of it."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def train_elastic(model, dataset, batch, port):
    """Trains with roundhouse until the benchmark ends."""
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
            pace = pace or Pace(port, job.rank)
            if not pace.continues(loss):
                break


def train_plain(net, dataset, batch, port, rank, world):
    """Trains without roundhouse until the benchmark ends."""
    optimizer = optimizer_of(net)
    pace = None
    for x, y in torch.utils.data.DataLoader(dataset, batch_sampler=Share(batch, rank, world)):
        loss = loss_of(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        pace = pace or Pace(port, rank)
        if not pace.continues(loss):
            break
