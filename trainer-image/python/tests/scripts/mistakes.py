"""What a newcomer from plain DDP does in a worker of a job: MISTAKE."""

import sys

import torch
import torch.distributed as dist

import roundhouse as rh

MISTAKE = sys.argv[1]
if MISTAKE == "init":
    dist.init_process_group("gloo")

model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01)


class Samples:
    def __len__(self):
        return 17

    def __getitem__(self, index):
        return torch.rand(8), torch.rand(1)


with rh.join(state={"model": model, "opt": opt}) as job:
    if MISTAKE == "rank" and job.rank == 0:
        print("rank 0 prepares the data")
    if MISTAKE == "barrier":
        dist.barrier()
    net = job.model(model)
    options = {"num_workers": 1, "multiprocessing_context": "spawn"} if MISTAKE == "spawn" else {}
    for batch in job.steps(Samples(), job.sampler(17, 16, epochs=2, drop_last=MISTAKE == "none"), **options):
        x, y = batch
        loss = torch.nn.functional.mse_loss(net(x), y)
        loss.backward()
        job.commit(loss, opt)
        assert job.rank == 0 and job.alone(lambda: "alone") == "alone"
    assert MISTAKE == "none" and job.steps_done == 2
