"""Reports its numbers with the functions of a section of docs/guides/trackers.md, which begins with
the heading TRACKER. Arguments: STEPS and TRACKER."""

import os
import pathlib
import re
import sys

import roundhouse as rh
import torch

STEPS, TRACKER = int(sys.argv[1]), sys.argv[2]
GUIDE = pathlib.Path(__file__).parents[4] / "docs" / "guides" / "trackers.md"

if TRACKER == "MLflow":
    import mlflow
elif TRACKER == "W&B":
    import wandb
else:
    import torch.utils.tensorboard

section = GUIDE.read_text().split(f"## {TRACKER}\n", 1)[1]
exec(re.search(r"```python\n(.*?)```", section, re.DOTALL)[1])
open_run, log = globals()["open_run"], globals()["log"]

torch.manual_seed(1)
dataset = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

run = None
with rh.join(state={"model": model, "optimizer": optimizer}) as job:
    job.on_generation(open_run)
    net = job.model(model)
    for batch in job.steps(dataset, job.sampler(64, 16, steps=STEPS, seed=1)):
        x, y = batch
        loss = ((net(x) - y) ** 2).mean()
        loss.backward()
        if job.commit(loss, optimizer) and job.rank == 0:
            log(batch.step.number, {"loss": job.loss, "norm": job.grad_norm})
        if os.environ.get("DIES_AFTER") == str(batch.step.number):
            os._exit(9)
