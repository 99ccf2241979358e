"""Trains a network whose processes of a worker exchange values within each pass. Arguments: STEPS
and the path of the weights. SHAPE: cp (each process has a part of the sequence), ep (each process
has some of the experts) or tied (two stages of a pipeline have the same matrix)."""

import os
import sys

import roundhouse as rh
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.nn.functional import all_gather, all_to_all_single
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.functional import cross_entropy, one_hot, softmax

STEPS, WEIGHTS = int(sys.argv[1]), sys.argv[2]
SHAPE = os.environ["SHAPE"]
size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
rank = int(os.environ.get("LOCAL_RANK", "0"))
LENGTH, WIDTH, EXPERTS = 8, 8, 4
torch.manual_seed(3)
points = torch.randn(300, LENGTH, WIDTH, dtype=torch.float64)
labels = (points[:, :, 0] * points[:, :, 1].mean(1, keepdim=True) > 0).long()
dataset = torch.utils.data.TensorDataset(points, labels)
dimension = {"cp": "cp", "cp-fsdp": "cp", "cp-forgotten": "cp", "ep": "ep"}.get(SHAPE, "pp")
mesh = rh.replica_mesh(dimension)


class Attention(torch.nn.Module):
    """Attention of a part of the sequence to all of it."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        both = torch.cat([self.key(x), self.value(x)], dim=-1)
        key, value = (torch.cat(all_gather(both), dim=1) if size > 1 else both).chunk(2, dim=-1)
        return x + softmax(self.query(x) @ key.transpose(1, 2), dim=-1) @ value


class Experts(torch.nn.Module):
    """Sends each token to the process that has its expert, and back."""

    def __init__(self):
        super().__init__()
        self.matrices = torch.nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) * 0.3)

    def forward(self, x):
        tokens = x.flatten(0, 1)
        expert = tokens[:, :EXPERTS].argmax(1)
        order = expert.argsort(stable=True)
        counts = one_hot(expert, EXPERTS).sum(0)
        sent = tokens[order]
        result = self.exchanged(sent, counts) if size > 1 else self.computed(sent, counts)
        return x + torch.zeros_like(tokens).index_copy(0, order, result).view_as(x)

    def computed(self, tokens, counts):
        parts = tokens.split(counts.tolist())
        return torch.cat([torch.tanh(part @ matrix) for part, matrix in zip(parts, self.matrices.to_local())])

    def exchanged(self, sent, counts):
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        # Sizes by process and expert, of what this process sends and receives.
        counts, theirs = counts.view(size, -1), theirs.view(size, -1)
        to, of = counts.sum(1).tolist(), theirs.sum(1).tolist()
        received = all_to_all_single(sent.new_empty(sum(of), WIDTH), sent, of, to)
        # Sorted by expert first, as `computed` takes them.
        places = torch.arange(theirs.shape[1]).repeat(size).repeat_interleave(theirs.flatten()).argsort(stable=True)
        done = self.computed(received[places], theirs.sum(0))
        back = torch.zeros_like(received).index_copy(0, places, done)
        return all_to_all_single(torch.empty_like(sent), back, to, of)


class Tied(torch.nn.Module):
    """Both stages, or both ends of the model, have the same matrix."""

    def __init__(self):
        super().__init__()
        self.matrix = torch.nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.3)
        if rank == 0:
            # The gradients of the two stages have different lengths.
            self.first = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        if rank == 0:
            x = torch.tanh(self.first(x) @ self.matrix)
        return x @ self.matrix.T if rank == size - 1 else x


if dimension == "cp":
    middle = Attention()
elif dimension == "ep":
    middle = Experts()
if dimension == "pp":
    model = Tied().double()
else:
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), middle, torch.nn.Linear(WIDTH, 2)).double()
if SHAPE == "cp-fsdp":
    fully_shard(model, mesh=mesh)
if SHAPE == "ep":
    middle.matrices = torch.nn.Parameter(distribute_tensor(middle.matrices.data, mesh, [Shard(0)]))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model[2], mesh=mesh)
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
group = mesh[dimension].get_group()


def sum_copies(divisor):
    """Sums the gradients of whole weights, to which each process has computed a part."""
    for parameter in [model.matrix] if dimension == "pp" else model.parameters():
        dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= divisor


def loss_of(scores, y):
    return cross_entropy(scores.flatten(0, 1), y.flatten())


with rh.join(state={"model": model, "opt": opt}) as job:
    net = job.model(model)
    for batch in job.steps(dataset, job.sampler(len(dataset), 30, steps=STEPS, seed=5)):
        x, y = batch
        if dimension == "cp":
            x, y = x.chunk(size, dim=1)[rank].contiguous(), y.chunk(size, dim=1)[rank].contiguous()
        if dimension == "pp" and size > 1:
            losses = []
            schedule = ScheduleGPipe(PipelineStage(net, rank, size, torch.device("cpu")), 1, loss_fn=loss_of)
            schedule.step(*([x] if rank == 0 else []), target=y, losses=losses)
            loss = losses[0].detach() if losses else None
        else:
            loss = loss_of(net(x), y)
            loss.backward()
        if size > 1 and SHAPE in ("cp", "tied"):
            sum_copies(size if SHAPE == "cp" else 1)
        if job.commit(loss, opt, max_grad_norm=0.3):
            print(f"step {job.steps_done}: {job.loss:.12f} {job.grad_norm:.12f}", flush=True)
    if dimension == "pp":
        print(f"bits {model.matrix.detach().view(torch.int64).sum()}", flush=True)
    job.save_result(WEIGHTS)
