"""A training whose ranks also sum numbers with job.sum. Arguments: STEPS and the path of the
weights. HOW selects the reaction to a lost rank."""

import math
import os
import signal
import sys

import roundhouse as rh
import torch

STEPS, WEIGHTS = int(sys.argv[1]), sys.argv[2]
HOW = os.environ.get("HOW", "")
# Factor of the losses.
FACTOR = float(os.environ.get("FACTOR", "1"))

torch.manual_seed(3)
points = torch.randn(100, 8)
dataset = torch.utils.data.TensorDataset(points, (points[:, 0] > 0).long())
model = torch.nn.Linear(8, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)


def num_ranks(job, step):
    if job.generation == 1 and os.environ.get("DIES_AT") == f"{job.rank}:{step}":
        os.kill(os.getpid(), signal.SIGKILL)
    return job.sum([1])[0]


def check_outcome(loss, step):
    """Checks that all ranks have the loss of all samples, and the same norm."""
    own = loss.item() * FACTOR * step.size / step.global_size
    mean, norms = job.sum([own, job.grad_norm])
    assert math.isclose(mean, job.loss, rel_tol=1e-6) and math.isclose(norms, job.world_size * job.grad_norm), (mean, job.loss)


def train(batch):
    loss = torch.nn.functional.cross_entropy(net(batch.x), batch.y)
    loss.backward()
    if HOW == "in a step":
        assert num_ranks(job, batch.step.number) == job.world_size
    # Also after a failed commit.
    job.commit(loss.detach().double() * FACTOR, opt)
    if HOW != "in a step":
        assert num_ranks(job, batch.step.number) == job.world_size
        check_outcome(loss, batch.step)


with rh.join(state={"model": model, "opt": opt}) as job:
    net = job.model(model)
    if HOW == "in a callback":
        job.on_generation(lambda job: num_ranks(job, 0))
    for batch in job.steps(dataset, job.sampler(len(dataset), 16, steps=STEPS, seed=5)):
        if HOW == "continue":
            try:
                train(batch)
            except rh.PeerLost:
                continue
        else:
            with batch:
                train(batch)
    job.save_result(WEIGHTS)
