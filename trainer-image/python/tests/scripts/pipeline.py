"""Trains a pipeline whose stages are the processes of a worker, or one process with all layers.
Arguments: STEPS and the path of the weights."""

import os
import signal
import sys

import roundhouse as rh
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.functional import cross_entropy, pad

STEPS, WEIGHTS = int(sys.argv[1]), sys.argv[2]
SHAPE = os.environ.get("SHAPE", "")
MICRO_BATCHES = 4
PADDING = -1
DIES_IN_PASS = int(os.environ.get("DIES_IN_PASS", "0"))
torch.manual_seed(3)
points = torch.randn(500, 8, dtype=torch.float64)
labels = (points[:, 0] * points[:, 1] > 0).long()
dataset = torch.utils.data.TensorDataset(points, labels)
size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
num_stages = min(size, 2) if SHAPE == "fsdp" else size
mesh = rh.replica_mesh("pp", "fsdp", shape=(num_stages, size // num_stages)) if SHAPE == "fsdp" else rh.replica_mesh("pp")
index = int(os.environ.get("LOCAL_RANK", "0")) // (size // num_stages)
is_first, is_last = index == 0, index == num_stages - 1


class Norm(torch.nn.Module):
    """Keeps a statistic of its inputs, which a stage without this layer lacks."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("largest", torch.zeros(width))

    def forward(self, x):
        if self.training:
            self.largest.copy_(torch.maximum(self.largest, x.detach().abs().amax(0)))
        return torch.nn.functional.layer_norm(x, x.shape[1:])


class Layers(torch.nn.Module):
    """Some of the layers of the model, under the names that they have in all of it."""

    def __init__(self, layers):
        super().__init__()
        self.layers = torch.nn.ModuleDict(layers)
        self.num_passes = 0

    def forward(self, x):
        self.num_passes += 1
        if SHAPE == "damaged" and self.num_passes == 7:
            raise rh.DataError("a sample is damaged")
        if self.num_passes == DIES_IN_PASS:
            # While its siblings send and receive.
            os.kill(os.getpid(), signal.SIGKILL)
        for layer in self.layers.values():
            x = layer(x)
        return x


width = 16
names = ["in", "norm", "middle", "deep", "out"] if SHAPE == "fsdp" else ["in", "middle", "deep", "out"]
layers = {
    "in": torch.nn.Linear(8, width),
    "norm": Norm(width),
    "middle": torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Linear(width, width)),
    "deep": torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Linear(width, width)),
    "out": torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Linear(width, 2)),
}
if SHAPE == "frozen":
    layers["in"].requires_grad_(False)
    layers["middle"].requires_grad_(False)
if SHAPE == "without":
    # The first stage has no parameter at all.
    names = ["activation", "in", "middle", "out"]
    layers["activation"] = torch.nn.Tanh()
parts = [names[:2], names[2:]] if num_stages == 2 else [names] if num_stages == 1 else [[name] for name in names]
if SHAPE == "without" and num_stages == 2:
    parts = [names[:1], names[1:]]
model = Layers({name: layers[name] for name in parts[index]}).double()
if SHAPE == "fsdp":
    fully_shard(model, mesh=mesh["fsdp"])
opt = torch.optim.SGD([{"params": list(model.parameters())}], lr=0.05, momentum=0.9)
clip = float(os.environ["CLIP"]) if os.environ.get("CLIP") else None
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3) if os.environ.get("SCALE") else None
state = {"model": model, "opt": opt} | ({"scaler": scaler} if scaler else {})
known = {}


def run(x, y, *, trains):
    """Runs a batch through all stages. Returns the mean loss and the scores in the last one."""
    rows = len(x)
    if (rows, trains) not in known:
        stage = PipelineStage(net, index, num_stages, torch.device("cpu"), group=mesh["pp"].get_group())

        def loss_of(scores, y):
            if SHAPE == "raises" and job.steps_done == 2:
                raise ValueError("no loss for these samples")
            loss = cross_entropy(scores, y, reduction="sum", ignore_index=PADDING) / rows
            return scaler.scale(loss) if scaler else loss

        known.clear()
        known[rows, trains] = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=loss_of, scale_grads=False)
    schedule = known[rows, trains]
    # All micro-batches have the same size. Rows that fill the last ones do not count.
    missing = -rows % MICRO_BATCHES if SHAPE != "uneven" else 0
    x, y = pad(x, (0, 0, 0, missing)), pad(y, (0, missing), value=PADDING)
    losses = []
    scores = (schedule.step if trains else schedule.eval)(*([x] if is_first else []), target=y, losses=losses)
    return (sum(losses).detach(), scores[:rows]) if is_last else (None, None)


def right(batch):
    x, y = batch
    if size == 1:
        scores = model(x)
    else:
        _, scores = run(x, y, trains=False)
    if scores is None:
        return None
    return {"loss": float(cross_entropy(scores, y, reduction="sum")), "accuracy": float((scores.argmax(1) == y).sum())}


def show(means):
    print(f"evaluated after {job.steps_done}: {means['loss']:.12f} {means['accuracy']:.4f}", flush=True)


evaluation = None
if os.environ.get("EVALUATE"):
    evaluation = rh.Evaluation(dataset, right, batch_size=70, every_epochs=0, every_steps=int(os.environ["EVALUATE"]), then=show)

with rh.join(state=state) as job:
    sampler = job.sampler(len(dataset), 50, steps=STEPS, seed=5)
    net = job.model(model)
    for batch in job.steps(dataset, sampler, evaluation=evaluation):
        x, y = batch
        if size == 1:
            loss = cross_entropy(net(x), y)
            (scaler.scale(loss) if scaler else loss).backward()
        else:
            loss, _ = run(x, y, trains=True)
            if scaler and loss is not None:
                loss = loss / scaler.get_scale()
        if os.environ.get("SCALE") == "inf" and batch.step.number in (4, 9) and is_first:
            # In one process of each replica, or of one, which others have to follow.
            next(model.parameters()).grad.view(-1)[0] = float("inf")
        if job.commit(loss, opt, max_grad_norm=clip, scaler=scaler):
            print(f"step {job.steps_done}: {job.loss:.12f} {job.grad_norm:.12f}", flush=True)
            if job.steps_done == 5:
                count = job.sum([len(x), 1.5] if is_last else None)
                print("summed", *count, flush=True)
    if scaler:
        print(f"scale {scaler.get_scale()}", flush=True)
    job.save_result(WEIGHTS)
