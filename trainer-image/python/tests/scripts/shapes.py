"""Trains a sharded network in a way that SHAPE names. Arguments: STEPS and the path of the
weights."""

import os
import sys

import roundhouse as rh
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy

STEPS, WEIGHTS = int(sys.argv[1]), sys.argv[2]
SHAPE = os.environ["SHAPE"]
torch.manual_seed(3)
points = torch.randn(int(os.environ.get("SAMPLES", "500")), 8, dtype=torch.float64)
labels = (points[:, 0] * points[:, 1] > 0).long()
dataset = torch.utils.data.TensorDataset(points, labels)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.up = torch.nn.Linear(16, 64)
        self.down = torch.nn.Linear(64, 16)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Tokens(torch.nn.Module):
    """Cuts a sample into four tokens, as sequence parallelism needs them."""

    def forward(self, x):
        return x.view(-1, 4, 2)


class Mean(torch.nn.Module):
    def forward(self, x):
        return x.mean(1)


is_tp = SHAPE in ("sequence", "tp-only", "unfreeze-tp")
if SHAPE == "sequence":
    model = torch.nn.Sequential(Tokens(), torch.nn.Linear(2, 16), Block(), Block(), Mean(), torch.nn.Linear(16, 2)).double()
else:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), Block(), Block(), torch.nn.Linear(16, 2)).double()
if SHAPE == "chain":
    model = torch.nn.Sequential(model[:2], model[2:])
blocks = [one for one in model.modules() if isinstance(one, Block)]
size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
if SHAPE == "half-sharded":
    mesh = rh.replica_mesh("fsdp", "tp", shape=(size // 2, 2)) if size > 1 else rh.replica_mesh("fsdp", "tp", shape=(1, 1))
    # Each parameter is a DTensor, but not one of the dimension with other samples.
    for one in model.modules():
        if isinstance(one, torch.nn.Linear):
            parallelize_module(one, mesh["tp"], ColwiseParallel(output_layouts=Replicate()))
    for block in blocks:
        fully_shard(block.norm, mesh=mesh["fsdp"])
elif is_tp:
    mesh = rh.replica_mesh("tp")
    for block in blocks:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        if SHAPE == "sequence":
            plan = {
                "norm": SequenceParallel(),
                "up": ColwiseParallel(input_layouts=Shard(1)),
                "down": RowwiseParallel(output_layouts=Shard(1)),
            }
        parallelize_module(block, mesh, plan)
    if SHAPE == "sequence":
        parallelize_module(
            model,
            mesh,
            {
                "2": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1), use_local_output=True),
                "4": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate(), use_local_output=True),
            },
        )
elif SHAPE == "chain":
    mesh = rh.replica_mesh()
    parts = list(model)
    for part in parts:
        fully_shard(part, mesh=mesh)
else:
    mesh = rh.replica_mesh()
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
clip = float(os.environ["CLIP"]) if os.environ.get("CLIP") else None
# The rank that makes one pass more than others.
EXTRA_RANK = int(os.environ.get("EXTRA_RANK", "0"))
state = {"model": model, "opt": opt}


def right(batch):
    x, y = batch
    return {"loss": float(cross_entropy(model(x), y, reduction="sum"))}


evaluation = rh.Evaluation(dataset, right, batch_size=125, every_steps=8) if SHAPE == "evaluate" else None
reduction = "sum" if SHAPE == "tokens" else "mean"
if SHAPE == "unfreeze-tp":
    model[0].requires_grad_(False)

with rh.join(state=state) as job:
    sampler = job.sampler(len(dataset), 64, steps=STEPS, seed=5, reduction=reduction)
    if SHAPE == "look-first":
        # FSDP2 keeps the whole parameters of the root.
        with torch.no_grad():
            model(points[:4])
    nets = [job.model(part) for part in parts] if SHAPE == "chain" else [job.model(model)]
    if SHAPE == "look-first":
        with torch.no_grad():
            model(points[:4])
    for batch in job.steps(dataset, sampler, evaluation=evaluation):
        x, y = batch
        weight = None
        if SHAPE == "unfreeze-tp" and batch.step.number > 5:
            model[0].requires_grad_(True)
        square = 0.0
        if SHAPE == "penalty":
            square = sum((p * p).sum() for p in model.parameters()).full_tensor()
        if SHAPE == "halves":
            # A drop between two passes of a step.
            try:
                with nets[0].no_sync():
                    (cross_entropy(nets[0](x[::2]), y[::2]) * (len(x[::2]) / len(x))).backward()
                job.sum([1.0])
            except rh.PeerLost:
                continue
            loss = cross_entropy(nets[0](x[1::2]), y[1::2]) * (len(x[1::2]) / len(x))
        else:
            out = x
            for net in nets:
                out = net(out)
            loss = cross_entropy(out, y, reduction=reduction)
        if SHAPE == "tokens":
            weight = float((y + 1).sum())
        loss = loss + 0.01 * square
        if SHAPE == "with":
            with batch:
                loss.backward()
                if os.environ.get("RAISES") == f"{job.rank}:{batch.step.number}":
                    raise RuntimeError("an error of the script")
                job.commit(loss, opt)
            continue
        loss.backward()
        if SHAPE == "clip":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if SHAPE == "passes" and batch.step.number == 3 and job.rank == EXTRA_RANK:
            nets[0](x[:1]).sum().backward()
        if job.commit(loss, opt, max_grad_norm=clip, weight=weight):
            print(f"step {job.steps_done}: {job.loss:.12f} {job.grad_norm:.12f}", flush=True)
    if SHAPE != "result" or job.rank == 0:
        job.save_result(WEIGHTS)
