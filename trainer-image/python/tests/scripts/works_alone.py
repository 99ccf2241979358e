"""Loses a rank before or in work that each rank does alone. Arguments: a directory for marks, and
when rank 1 dies: before, within or raised."""

import os
import pathlib
import signal
import sys
import time

import roundhouse as rh
import torch

MARKS, WHEN = pathlib.Path(sys.argv[1]), sys.argv[2]
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def lose_rank_1():
    """Loses rank 1, once."""
    if job.rank == 1 and job.generation == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if job.generation == 1:
        try:
            job.sum([1.0])
        except rh.PeerLost:
            if WHEN == "raised":
                raise


def work():
    (MARKS / "works").touch()
    while not (MARKS / "go").exists():
        time.sleep(0.01)


with rh.join(state={"model": model, "optimizer": optimizer}) as job:
    net = job.model(model)
    for batch in job.steps(data, job.sampler(64, 16, steps=6, seed=1)):
        loss = torch.nn.functional.mse_loss(net(batch.x), batch.y)
        loss.backward()
        job.commit(loss, optimizer)
        if job.steps_done != 3:
            continue
        if WHEN == "before":
            lose_rank_1()
        try:
            with job.patience(77):
                if WHEN != "before":
                    lose_rank_1()
                work()
        except rh.PeerLost:
            pass
