"""Exports the weights after each step. Arguments: STEPS and the path of the file. A large parameter
contains the number of the step in all its elements."""

import os
import sys

import roundhouse as rh
import torch

STEPS, FILE = int(sys.argv[1]), sys.argv[2]

torch.manual_seed(1)
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model = torch.nn.Linear(4, 1)
model.number = torch.nn.Parameter(torch.zeros(int(os.environ.get("LARGE", "1")) << 18), requires_grad=False)
opt = torch.optim.SGD(model.parameters(), lr=0.01)

with rh.join(state={"model": model, "opt": opt}) as job:
    net = job.model(model)
    for batch in job.steps(data, job.sampler(64, 16, steps=STEPS, seed=1)):
        x, y = batch
        loss = ((net(x) - y) ** 2).mean()
        loss.backward()
        if job.commit(loss, opt):
            with torch.no_grad():
                model.number.fill_(batch.step.number)
            job.export(FILE)
