"""A training on sentences of different lengths, whose loss is the mean over all tokens of a step.
Argument: WEIGHTS. Rank 0 works alone for longer than collectives wait."""

import os
import sys
import time

import roundhouse as rh
import torch
from safetensors.torch import save_file

torch.manual_seed(5)
torch.set_default_dtype(torch.float64)
model = torch.nn.Linear(6, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.5)
words = torch.randn(60, 9, 6)
labels = torch.randint(3, (60, 9))
for index, length in enumerate(torch.randint(1, 10, (60,)).tolist()):
    labels[index, length:] = -100
data = torch.utils.data.TensorDataset(words, labels)

with rh.join(state={"model": model, "opt": opt}) as job:
    net = job.model(model)
    sampler = job.sampler(60, 13, epochs=3, seed=2, reduction="sum")
    for batch in job.steps(data, sampler):
        x, y = batch
        scores = net(x)
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), y.flatten(), ignore_index=-100, reduction="sum")
        loss.backward()
        job.commit(loss, opt, max_grad_norm=0.5, weight=(y != -100).sum())
        if batch.step.number == 7 and os.environ.get("ALONE"):
            found = job.alone(lambda: time.sleep(float(os.environ["ALONE"])) or "done")
            assert found == ("done" if job.rank == 0 else None)
            print(f"generation {job.generation} after the wait", flush=True)
    if job.rank == 0:
        save_file({"weight": model.weight.detach()}, sys.argv[1])
