"""Trains a network that the processes of each worker share. Arguments: STEPS and the path of the
weights. PARALLEL: fsdp, tp or both. DEVICE: cpu or cuda. DIES: where rank 0 dies, as "commit 5",
"then 4" or "end". MISSES_OUTCOME: the step whose commit this process does not learn, because its
connection fails."""

import contextlib
import os
import signal
import sys

import roundhouse as rh
import torch
from roundhouse.links import Subject
from roundhouse.replica import current
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

STEPS, WEIGHTS = int(sys.argv[1]), sys.argv[2]
PARALLEL = os.environ.get("PARALLEL", "fsdp")
SIZE = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
torch.manual_seed(3)
points = torch.randn(500, 8, dtype=torch.float64)
labels = (points[:, 0] * points[:, 1] > 0).long()
dataset = torch.utils.data.TensorDataset(points, labels)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        # A number of rows that no number of processes divides.
        self.up = torch.nn.Linear(16, 61 if PARALLEL == "fsdp" else 64)
        self.down = torch.nn.Linear(61 if PARALLEL == "fsdp" else 64, 16)
        self.norm = torch.nn.BatchNorm1d(16) if os.environ.get("NORM") else torch.nn.LayerNorm(16)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


model = torch.nn.Sequential(torch.nn.Linear(8, 16), Block(), Block(), torch.nn.Linear(16, 2))
model = model.to(os.environ.get("DEVICE", "cpu"), torch.float64)
if PARALLEL == "fsdp":
    mesh = rh.replica_mesh("shard")
elif PARALLEL == "tp":
    mesh = rh.replica_mesh("tp")
else:
    mesh = rh.replica_mesh("fsdp", "tp", shape=(SIZE // 2, 2))
if "tp" in mesh.mesh_dim_names:
    for block in model[1:3]:
        tp = mesh["tp"]
        parallelize_module(block, tp, {"up": ColwiseParallel(), "down": RowwiseParallel()})
if PARALLEL != "tp":
    own = mesh["fsdp"] if PARALLEL == "both" else mesh
    for block in model[1:3]:
        fully_shard(block, mesh=own)
    fully_shard(model, mesh=own)
if os.environ.get("SGD"):
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
else:
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 200)


def right(batch):
    x, y = batch
    scores = model(x)
    loss = torch.nn.functional.cross_entropy(scores, y, reduction="sum")
    return {"loss": float(loss), "accuracy": float((scores.argmax(1) == y).sum())}


def dies(point):
    """Kills rank 0 at this point if a test wants it. Returns whether it does."""
    is_here = os.environ.get("DIES") == point
    if is_here and job.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return is_here


def evaluated(means):
    print(f"evaluated after {job.steps_done}: {means['loss']:.10f} {means['accuracy']:.4f}", flush=True)
    dies(f"then {job.steps_done}")


evaluation = None
if os.environ.get("EVALUATE"):
    evaluation = rh.Evaluation(
        dataset, right, batch_size=100, every_epochs=0, every_steps=int(os.environ["EVALUATE"]), then=evaluated,
    )
CLIP = None if os.environ.get("SGD") else 0.5
# A scaler, and steps in which the gradient of one process is infinite.
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3) if os.environ.get("SCALE") else None
state = {"model": model, "opt": opt, "schedule": schedule} | ({"scaler": scaler} if scaler else {})
PASSES = int(os.environ.get("PASSES", "1"))


def miss_outcome(job, step):
    """Lets the connection of this process fail between the last two messages of a step."""
    links = current()._links
    answer = links._answer

    def failing(subject, numbers):
        if subject != Subject.HOLDS or job.steps_done != step - 1 or job._open.step is None:
            return answer(subject, numbers)
        answer(subject, numbers)
        raise ConnectionError("the connection was reset")

    links._answer = failing


with rh.join(state=state) as job:
    slices = int(os.environ["SLICES"]) if os.environ.get("SLICES") else None
    sampler = job.sampler(len(dataset), 64, steps=STEPS, seed=5, slices=slices)
    net = job.model(model)
    if os.environ.get("MISSES_OUTCOME"):
        miss_outcome(job, int(os.environ["MISSES_OUTCOME"]))
    for batch in job.steps(dataset, sampler, evaluation=evaluation):
        x, y = batch.to(job.device)
        total = 0.0
        for index, (xs, ys) in enumerate(zip(x.chunk(PASSES), y.chunk(PASSES))):
            is_last = index == len(x.chunk(PASSES)) - 1
            with contextlib.nullcontext() if is_last else net.no_sync():
                loss = torch.nn.functional.cross_entropy(net(xs), ys) * (len(xs) / len(x))
                (scaler.scale(loss) if scaler else loss).backward()
            total += loss.detach()
        if scaler and batch.step.number in (4, 9) and job.rank == job.world_size - 1:
            up = model[1].up.weight.grad
            getattr(up, "_local_tensor", up)[-1, -1] = float("inf")
        if job.commit(total, opt, schedule, max_grad_norm=CLIP, scaler=scaler):
            print(f"step {job.steps_done}: {job.loss:.17g} {job.grad_norm:.17g}", flush=True)
            if dies(f"commit {job.steps_done}"):
                job.sum([1.0])
    if scaler:
        print(f"scale {scaler.get_scale()} after {schedule.last_epoch} updates", flush=True)
    dies("end")
    job.save_result(WEIGHTS)
