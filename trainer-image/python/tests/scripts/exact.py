"""A training with selectable features. Arguments: STEPS, the path of the weights, and the names of
the features."""

import contextlib
import os
import signal
import sys

import roundhouse as rh
import torch
import torch.distributed as dist

STEPS, WEIGHTS, USES = int(sys.argv[1]), sys.argv[2], sys.argv[3].split("-")

torch.manual_seed(3)
points = torch.randn(100, 8)
dataset = torch.utils.data.TensorDataset(points, (points[:, 0] * points[:, 1] > 0).long())


class Layers(torch.nn.Sequential):
    """Leaves out the last layer in some passes."""

    skips = False

    def forward(self, x):
        return super().forward(x) if len(self) < 4 else self[2](self[1](self[0](x))) + (0 if self.skips else self[3](x))


model = Layers(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
if "unused" in USES:
    model.append(torch.nn.Linear(8, 2))
reduction = "sum" if "sum" in USES else "mean"
batch_size = 2 if "small" in USES else 32
rate = 0.05 / batch_size if "sum" in USES else 0.05
parameters = [[*model[0].parameters()], [*model[2:].parameters()]]
opts = [torch.optim.SGD(some, lr=rate, momentum=0.9) for some in parameters]
# tests/gpu also runs this script on a GPU.
DEVICE = os.environ.get("DEVICE", "cpu")
model.to(DEVICE)
scaler = torch.amp.GradScaler(DEVICE, init_scale=64.0, growth_interval=10)
state = {"model": model, "first": opts[0], "second": opts[1], "scaler": scaler}


def passes(net, x, y):
    """Computes the gradients of the batch. Returns the loss."""
    parts = list(zip(x.split(3), y.split(3))) if "accumulate" in USES else [(x, y)]
    total = 0.0
    for index, (part_x, part_y) in enumerate(parts):
        with contextlib.nullcontext() if index == len(parts) - 1 else net.no_sync():
            with torch.autocast(DEVICE, dtype=torch.float16, enabled="autocast" in USES):
                scores = net(part_x)
            loss = torch.nn.functional.cross_entropy(scores.float(), part_y, reduction="sum")
            loss = loss if reduction == "sum" else loss / len(x)
            (scaler.scale(loss) if "scaler" in USES else loss).backward()
        total += loss.item()
    return total


def summed_gradients(step):
    """Sums gradients, which gradients="manual" leaves to the script."""
    for parameter in model.parameters():
        parameter.grad *= step.size / step.global_size
        if job.group is not None:
            dist.all_reduce(parameter.grad)


with rh.join(state=state, gradients="manual" if "manual" in USES else "ddp") as job:
    options = {"find_unused_parameters": "unused" in USES, "static_graph": "static" in USES}
    net = model if "manual" in USES else job.model(model, **options)
    if "apart" in USES:
        first, second = job.model(model[0]), job.model(model[2])
        net = lambda x: second(torch.tanh(first(x)))  # noqa: E731
    sampler = job.sampler(len(dataset), batch_size, steps=STEPS, seed=5, reduction=reduction)
    for batch in job.steps(dataset, sampler):
        number = batch.step.number
        if "frozen" in USES:
            model[2].requires_grad_(number % 20 < 10)
        # Only collectives of the script and find_unused_parameters need `with batch:`.
        model.skips = number % 3 == 0
        with batch if {"manual", "collective", "unused"} & set(USES) else contextlib.nullcontext():
            loss = passes(net, *batch.to(job.device))
            if "manual" in USES:
                summed_gradients(batch.step)
            if "scaler" in USES and number == 7:
                model[0].weight.grad[0, 0] = float("inf")
            for opt in opts if "unscale" in USES else []:
                scaler.unscale_(opt)
            if os.environ.get("KILL_AT") == str(number):
                os.kill(os.getpid(), signal.SIGKILL)
            if "collective" in USES and job.group is not None:
                dist.all_reduce(torch.ones(1))
            for opt in opts if "rate" in USES else []:
                # Before the commit, also in a dropped step, so it is a function of the step's
                # number.
                opt.param_groups[0]["lr"] = rate * (1 - number / 2 / STEPS)
            chosen = [opts[number % 2]] if "alternate" in USES else opts
            most = 0.5 if "clip" in USES else None
            job.commit(loss, chosen, scaler=scaler if "scaler" in USES else None, max_grad_norm=most)
    job.save_result(WEIGHTS)
