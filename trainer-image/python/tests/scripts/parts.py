"""A training whose ranks also sum a number in a group that the script creates. Arguments: STEPS and
the path of the weights."""

import os
import signal
import sys

import roundhouse as rh
import torch
import torch.distributed as dist

STEPS, WEIGHTS = int(sys.argv[1]), sys.argv[2]

torch.manual_seed(3)
points = torch.randn(100, 8)
dataset = torch.utils.data.TensorDataset(points, (points[:, 0] > 0).long())
# tests/gpu also runs this script on a GPU.
model = torch.nn.Linear(8, 2).to(os.environ.get("DEVICE", "cpu"))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
part = None


def make_part(job):
    global part
    if os.environ.get("DIES_AT_FIRST") == f"{job.rank}:{job.generation}":
        os.kill(os.getpid(), signal.SIGKILL)
    if job.group is not None:
        # A rank outside of the group also waits for the others.
        dist.new_group([0, 1])
    part = None if job.group is None else dist.new_group()


with rh.join(state={"model": model, "opt": opt}) as job:
    job.on_generation(make_part)
    net = job.model(model)
    for batch in job.steps(dataset, job.sampler(len(dataset), 16, steps=STEPS, seed=5)):
        with batch:
            num_samples = torch.tensor([batch.step.size], device=job.device)
            if part is not None:
                dist.all_reduce(num_samples, group=part)
                found = [None] * job.world_size
                dist.all_gather_object(found, {"rank": job.rank}, group=part)
                assert [one["rank"] for one in found] == list(range(job.world_size)), found
                # Over NCCL an exchange needs lengths: see docs/guides/python-recipes.md.
                equal = [1] * job.world_size
                for lengths in [equal] if job.device.type == "cuda" else [equal, None]:
                    for group in (part, job.group):
                        row = torch.arange(job.world_size, device=job.device) + job.rank * job.world_size
                        come = torch.empty_like(row)
                        dist.all_to_all_single(come, row, lengths, lengths, group=group)
                        assert come.tolist() == [peer * job.world_size + job.rank for peer in range(job.world_size)], come
            x, y = batch.to(job.device)
            assert int(num_samples) == batch.step.global_size
            loss = torch.nn.functional.cross_entropy(net(x), y)
            loss.backward()
            job.commit(loss, opt)
    job.save_result(WEIGHTS)
