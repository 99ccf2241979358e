"""A training of a small network on points, as tests run it: STEPS and where the weights go."""

import os
import sys

import torch

import roundhouse as rh

STEPS, WEIGHTS = int(sys.argv[1]), sys.argv[2]

torch.manual_seed(3)
points = torch.randn(500, 8)[: int(os.environ.get("SAMPLES", "500"))]
labels = (points[:, 0] * points[:, 1] > 0).long()
dataset = torch.utils.data.TensorDataset(points, labels)
width = int(os.environ.get("WIDTH", "32"))
layers = [torch.nn.Linear(8, width), torch.nn.Tanh(), torch.nn.Linear(width, 2)]
if os.environ.get("NORM"):
    layers.insert(1, torch.nn.BatchNorm1d(32))
model = torch.nn.Sequential(*layers)
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 200)

with rh.join(state={"model": model, "opt": opt, "schedule": schedule}) as job:
    sampler = job.sampler(len(dataset), 64, steps=STEPS, seed=5)
    net = job.model(model)
    for batch in job.steps(dataset, sampler, num_workers=int(os.environ.get("LOADERS", "0"))):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        if os.environ.get("RAISE_AT") == f"{job.rank}:{batch.step.number}":
            raise ValueError("a bug of the script")
        job.commit(loss, opt, schedule)
    job.save_result(WEIGHTS)
