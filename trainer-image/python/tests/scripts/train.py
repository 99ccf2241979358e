"""Trains a small network on points. Arguments: STEPS and the path of the weights."""

import copy
import os
import sys

import roundhouse as rh
import torch

STEPS, WEIGHTS = int(sys.argv[1]), sys.argv[2]

torch.manual_seed(3)
points = torch.randn(500, 8)[: int(os.environ.get("SAMPLES", "500"))]
labels = (points[:, 0] * points[:, 1] > 0).long()
# 64 bits, so that the order of sums does not change weights that are saved with 32 bits.
if os.environ.get("DOUBLE"):
    points = points.double()
dataset = torch.utils.data.TensorDataset(points, labels)
width = int(os.environ.get("WIDTH", "32"))
layers = [torch.nn.Linear(8, width), torch.nn.Tanh(), torch.nn.Linear(width, 2)]
if os.environ.get("NORM"):
    layers.insert(1, torch.nn.BatchNorm1d(32))
# tests/gpu also runs this script on a GPU.
model = torch.nn.Sequential(*layers).to(os.environ.get("DEVICE", "cpu"), points.dtype)
if os.environ.get("SGD"):
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
else:
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 200)


def add_noise(*_):
    """Adds noise to the weights, as Langevin dynamics do."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.01)


if os.environ.get("NOISE"):
    opt.register_step_post_hook(add_noise)


def right(batch):
    x, y = batch
    scores = model(x)
    loss = torch.nn.functional.cross_entropy(scores, y, reduction="sum")
    return {"loss": float(loss), "accuracy": float((scores.argmax(1) == y).sum())}


def fail(*_):
    """Fails like an error of DDP: a pass of the module alone succeeds."""
    if torch.nn.parallel.DistributedDataParallel._get_active_ddp_module() is not None and job.steps_done + 1 == int(FAIL_AT):
        raise RuntimeError("a type that the group does not know")


FAIL_AT = os.environ.get("FAIL_AT")
if FAIL_AT:
    model.register_forward_pre_hook(fail)


def report_start(_):
    """Prints that a process that loads samples has started."""
    print(f"process that loads: {os.getpid()}", flush=True)


def evaluated(means, what=""):
    print(f"{what}evaluated after {job.steps_done}: {means['loss']:.4f}", flush=True)


evaluation = rh.Evaluation(dataset, right, batch_size=100) if os.environ.get("EVALUATE") else None
if os.environ.get("EVALUATE_EVERY"):
    number = int(os.environ["EVALUATE_EVERY"])
    evaluation = rh.Evaluation(dataset, right, batch_size=100, every_epochs=0, every_steps=number, then=evaluated)
    # Fewer samples than the data set of rank 1.
    part = torch.utils.data.Subset(dataset, [0])
    of_part = rh.Evaluation(part, right, every_epochs=0, every_steps=number, then=lambda means: evaluated(means, "part "))
    evaluation = [evaluation, of_part]

if os.environ.get("NO_STATE"):
    schedule.state_dict = lambda: int("no number")

state = {"model": model, "opt": opt, "schedule": schedule}
if os.environ.get("LARGE"):
    # A tensor of this size in MiB, which is not trained.
    state["large"] = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(int(os.environ["LARGE"]) << 18), requires_grad=False)])

with rh.join(state=state) as job:
    print("threads that compute:", torch.get_num_threads(), flush=True)
    sampler = job.sampler(len(dataset), 64, steps=STEPS, seed=5, in_order=bool(os.environ.get("STREAM")))
    if os.environ.get("STREAM"):
        dataset = job.shard_of(list(dataset), len(dataset))
    net = job.model(model)
    loaders = {"num_workers": int(os.environ["LOADERS"]), "worker_init_fn": report_start} if os.environ.get("LOADERS") else {}
    for batch in job.steps(dataset, sampler, evaluation=evaluation, **loaders):
        if os.environ.get("STOP_AT") in (str(batch.step.number), f"{job.rank}:{batch.step.number}"):
            break
        x, y = batch.to(job.device)
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        if os.environ.get("CUT_OFF_AT") == f"{job.rank}:{job.generation}:{batch.step.number}":
            # Flip one bit, as if a sum of gradients was cut off and left garbage only on this rank.
            model[0].weight.grad.view(torch.int32)[0, 0] ^= 1
        if os.environ.get("RAISE_AT") == f"{job.rank}:{batch.step.number}":
            raise ValueError("a bug of the script")
        if os.environ.get("EXIT_AT") == f"{job.rank}:{batch.step.number}":
            sys.exit()
        job.commit(loss, opt, schedule)
        if os.environ.get("FLIP_AT") == f"{job.rank}:{batch.step.number}":
            with torch.no_grad():
                model[0].weight[0, 0] += 1e-6
    if os.environ.get("EXIT_AT_END") == str(job.rank):
        os.kill(os.getpid(), 9)
    job.save_result(WEIGHTS, copy.deepcopy(model).float())

if os.environ.get("JOIN_AGAIN"):
    rh.join(state={"model": model})
