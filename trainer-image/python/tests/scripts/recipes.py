"""A training with a recipe of docs/guides/python-recipes.md: the state changes after the commit.
Arguments: RECIPE and the path of the result."""

import json
import os
import pathlib
import sys

import roundhouse as rh
import torch

RECIPE, RESULT = sys.argv[1], pathlib.Path(sys.argv[2])

# 64 bits, so that the order of sums does not matter.
torch.set_default_dtype(torch.float64)
torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
x = torch.randn(64, 4)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
state = {"model": model}
if RECIPE != "manual":
    opt = state["opt"] = torch.optim.SGD(model.parameters(), lr=0.1 if RECIPE == "epoch" else 0.01)
if RECIPE == "epoch":
    schedule = state["schedule"] = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
if RECIPE == "average":
    average_of = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    average = state["average"] = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=average_of)

with rh.join(state=state) as job:
    net = job.model(model)
    for batch in job.steps(data, job.sampler(64, 16, epochs=12, seed=1)):
        a, b = batch
        loss = ((net(a) - b) ** 2).mean()
        loss.backward()
        if RECIPE == "manual":
            gradients = [parameter.grad.clone() for parameter in model.parameters()]
            if job.commit(loss, []):
                with torch.no_grad():
                    for parameter, gradient in zip(model.parameters(), gradients):
                        parameter -= 0.05 * gradient
        elif job.commit(loss, opt):
            if RECIPE == "average":
                average.update_parameters(model)
            elif batch.step.ends_epoch:
                schedule.step()
        if os.environ.get("DIES_AFTER") == str(batch.step.number):
            os._exit(9)
    result = {"weights": model.weight.flatten().tolist(), "steps": job.steps_done}
    if RECIPE == "epoch":
        result["rate"] = schedule.get_last_lr()
    if RECIPE == "average":
        result["average"] = [int(average.n_averaged), *average.module.weight.flatten().tolist()]
    if job.rank == 0:
        RESULT.write_text(json.dumps(result))
