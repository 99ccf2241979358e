"""Trains a pipeline whose two stages are the processes of a worker. Arguments: STEPS and the path
of the weights."""

import os
import sys

import roundhouse as rh
import torch
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.functional import cross_entropy

STEPS, WEIGHTS = int(sys.argv[1]), sys.argv[2]
torch.manual_seed(3)
points = torch.randn(500, 8, dtype=torch.float64)
labels = (points[:, 0] * points[:, 1] > 0).long()
dataset = torch.utils.data.TensorDataset(points, labels)
size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
rank = int(os.environ.get("LOCAL_RANK", "0"))
mesh = rh.replica_mesh("pp")
width = 16
layers = [torch.nn.Linear(8, width), torch.nn.Linear(width, width), torch.nn.Linear(width, width), torch.nn.Linear(width, 2)]
model = torch.nn.ModuleDict({f"layer{index}": torch.nn.Sequential(one, torch.nn.Tanh()) for index, one in enumerate(layers)}).double()
if size > 1:
    own = list(model)[:2] if rank == 0 else list(model)[2:]
    model = torch.nn.ModuleDict({name: model[name] for name in own})


class Stage(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = model

    def forward(self, x):
        for layer in self.layers.values():
            x = layer(x)
        return x


stage = Stage()
opt = torch.optim.SGD(stage.parameters(), lr=0.05, momentum=0.9)
clip = float(os.environ["CLIP"]) if os.environ.get("CLIP") else None
with rh.join(state={"model": stage, "opt": opt}) as job:
    sampler = job.sampler(len(dataset), 64, steps=STEPS, seed=5)
    net = job.model(stage)
    for batch in job.steps(dataset, sampler):
        x, y = batch
        if size == 1:
            loss = cross_entropy(net(x), y)
            loss.backward()
        else:
            pipe = ScheduleGPipe(PipelineStage(net, rank, 2, torch.device("cpu")), 2, loss_fn=cross_entropy)
            losses = []
            if rank == 0:
                pipe.step(x)
                loss = None
            else:
                pipe.step(target=y, losses=losses)
                loss = torch.stack(losses).mean()
        if job.commit(loss, opt, max_grad_norm=clip):
            print(f"step {job.steps_done}: {job.loss:.12f} {job.grad_norm:.12f}", flush=True)
    job.save_result(WEIGHTS)
