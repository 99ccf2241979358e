"""One rank of the training with PyTorch alone: DistributedDataParallel over Gloo, or the bare
model."""
import argparse
import os

import torch
import torch.distributed as dist
from models import NUM_SAMPLES, SEED, prepared
from pace import Pace
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import roundhouse as rh


class Share:
    """The batches of this rank, with the samples of the other side, so that both sides train the
    same.

    All permutations are computed before the first step, so they are not timed.
    """

    def __init__(self, batch, rank, world):
        self.batch, self.rank, self.world = batch, rank, world
        schedule = rh.Sampler(NUM_SAMPLES, batch, epochs=1, seed=SEED).schedule
        # More epochs would take long to compute. After 1,000 epochs the orders repeat.
        self.orders = [schedule.samples(epoch, 0, NUM_SAMPLES) for epoch in range(1000)]

    def __iter__(self):
        while True:
            for order in self.orders:
                for start in range(0, NUM_SAMPLES, self.batch):
                    first = start + self.batch * self.rank // self.world
                    yield order[first : start + self.batch * (self.rank + 1) // self.world]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True, help="port of the benchmark")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--bare", action="store_true", help="train the model without DDP, with one rank")
    parser.add_argument("--master-port", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, dataset, optimizer, batch = prepared(options.model)
    net = model
    if not options.bare:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(options.master_port))
        dist.init_process_group("gloo", rank=options.rank, world_size=options.world)
        net = DistributedDataParallel(model)
    pace = None
    share = Share(batch, options.rank, options.world)
    for x, y in torch.utils.data.DataLoader(dataset, batch_sampler=share):
        loss = cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        pace = pace or Pace(options.port, options.rank)
        if not pace.continues(loss):
            break
    if not options.bare:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
