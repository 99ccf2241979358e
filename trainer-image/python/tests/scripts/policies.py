"""Trains a network that FSDP2 shards, in a way that POLICY names. Arguments: STEPS and the path of
the weights."""

import os
import sys

import roundhouse as rh
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.nn.functional import cross_entropy

STEPS, WEIGHTS, POLICY = int(sys.argv[1]), sys.argv[2], os.environ["POLICY"]
assert POLICY in ("mixed", "offloaded", "meta", "checkpointed", "compiled"), POLICY
torch.manual_seed(3)
points = torch.randn(500, 8, dtype=torch.float64)
labels = (points[:, 0] * points[:, 1] > 0).long()
dataset = torch.utils.data.TensorDataset(points, labels)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        # A number of rows that two processes do not divide.
        self.up, self.down = torch.nn.Linear(16, 61), torch.nn.Linear(61, 16)

    def forward(self, x):
        assert x.dtype == (torch.float32 if POLICY == "mixed" else torch.float64)
        return x + self.down(torch.tanh(self.up(self.norm(x))))


options = {"mesh": rh.replica_mesh()}
if POLICY == "mixed":
    # Computes in 32 bits, and sums the gradients of the processes in 64.
    options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float64)
if POLICY == "offloaded":
    options["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
with torch.device("meta" if POLICY == "meta" else "cpu"):
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), Block(), Block(), torch.nn.Linear(16, 2)).double()
if POLICY == "checkpointed":
    model[1], model[2] = checkpoint_wrapper(model[1]), checkpoint_wrapper(model[2])
for index in (1, 2):
    if POLICY == "compiled":
        model[index].compile(backend="aot_eager")
    fully_shard(model[index], **options)
fully_shard(model, **options)
if POLICY == "meta":
    model.to_empty(device="cpu")
    for number, parameter in enumerate(model.parameters()):
        whole = torch.sin(torch.arange(parameter.numel(), dtype=torch.float64) * (number + 1)).view(parameter.shape) / 4
        parameter.data.copy_(distribute_tensor(whole, parameter.device_mesh, parameter.placements))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

with rh.join(state={"model": model, "optimizer": optimizer}) as job:
    sampler = job.sampler(len(dataset), 64, steps=STEPS, seed=5)
    net = job.model(model)
    for batch in job.steps(dataset, sampler):
        x, y = batch
        for half, last in ((slice(None, None, 2), False), (slice(1, None, 2), True)):
            model.set_requires_gradient_sync(last)
            loss = cross_entropy(net(x[half]), y[half], reduction="sum") / len(x)
            loss.backward()
        job.commit(loss, optimizer, max_grad_norm=0.5)
    job.save_result(WEIGHTS)
