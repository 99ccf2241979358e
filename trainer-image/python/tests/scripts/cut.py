"""A training whose steps change a state after the commit. Arguments: STEPS and the path of the
state. After the step CUT_AT, rank 2 dies while rank 1 waits for it and rank 0 does not wait."""

import os
import pathlib
import signal
import sys

import roundhouse as rh
import torch
import torch.distributed as dist

STEPS, RESULT = int(sys.argv[1]), pathlib.Path(sys.argv[2])
CUT_AT = int(os.environ["CUT_AT"])

torch.manual_seed(3)
points = torch.randn(100, 8)
dataset = torch.utils.data.TensorDataset(points, (points[:, 0] > 0).long())
model = torch.nn.Linear(8, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
num_bodies = torch.zeros(1)

with rh.join(state={"model": model, "opt": opt, "num_bodies": num_bodies}) as job:
    net = job.model(model)
    for batch in job.steps(dataset, job.sampler(len(dataset), 16, steps=STEPS, seed=5)):
        with batch:
            x, y = batch.data
            loss = torch.nn.functional.cross_entropy(net(x), y)
            loss.backward()
            if not job.commit(loss, opt):
                continue
            if job.generation == 1 and job.steps_done == CUT_AT:
                if job.rank == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                if job.rank == 1:
                    dist.recv(torch.zeros(1), src=2, group=job.group)
            num_bodies += 1
    RESULT.with_name(f"{RESULT.name}-{job.rank}").write_text(str(int(num_bodies)))
