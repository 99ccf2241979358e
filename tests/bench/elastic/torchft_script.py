"""The script for torchft: train.py's MLP with the same digits, batch and optimizer, written like
torchft's DDP example.

The number of the step and the number of participants determine the samples of a step, so that no
sample is skipped; torchft's own sampler does not guarantee that. Each process appends a line per
committed step, as train.py does, to a new file when the number of participants changes.
"""
import argparse
import datetime
import gzip
import os
import pathlib
import time

import torch
import torch.distributed as dist
import torchft


def read(path, header):
    """The bytes of an IDX file after its header."""
    return torch.frombuffer(bytearray(gzip.decompress(path.read_bytes())[header:]), dtype=torch.uint8)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--worker", required=True)
    parser.add_argument("--timeout", type=int, required=True, help="seconds a collective may take")
    options = parser.parse_args()

    labels = read(options.data / "train-labels-idx1-ubyte.gz", 8).long()
    images = read(options.data / "train-images-idx3-ubyte.gz", 16).view(len(labels), -1).float() / 255
    batch = 64
    per_epoch = -(-len(labels) // batch)
    torch.manual_seed(7)
    net = torch.nn.Sequential(
        torch.nn.Linear(images.shape[1], 32), torch.nn.ReLU(), torch.nn.Linear(32, int(labels.max()) + 1)
    )
    sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    def load(state):
        net.load_state_dict(state["net"])
        sgd.load_state_dict(state["sgd"])

    limit = datetime.timedelta(seconds=options.timeout)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=limit),
        load_state_dict=load,
        state_dict=lambda: {"net": net.state_dict(), "sgd": sgd.state_dict()},
        min_replica_size=2,
        timeout=limit,
        connect_timeout=limit,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        replica_id=f"worker-{options.worker}",
        hostname="127.0.0.1",
    )
    model = torchft.DistributedDataParallel(manager, net)
    optimizer = torchft.Optimizer(manager, sgd)

    ordered, order, worlds, lines = None, None, [], None
    while True:
        # zero_grad starts a quorum, which determines the participants.
        optimizer.zero_grad()
        manager.wait_quorum()
        step, world, rank = manager.current_step(), manager.num_participants(), manager.participating_rank()
        epoch, cursor = step // per_epoch, step % per_epoch * batch
        if ordered != epoch:
            ordered, order = epoch, torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        size = min(batch, len(labels) - cursor)
        # A process that receives the state participates from the next step. Its gradients do not
        # count in this one.
        takes_part = rank is not None
        first, last = (cursor + size * (rank + part) // world for part in (0, 1)) if takes_part else (cursor, cursor + 1)
        mine = order[first:last]
        # torchft divides the sum over the participants by their number.
        loss = torch.nn.functional.cross_entropy(model(images[mine]), labels[mine], reduction="sum") * max(world, 1) / size
        loss.backward()
        optimizer.step()
        if takes_part and manager.current_step() > step:
            if worlds[-1:] != [world]:
                worlds.append(world)
                path = options.out / f"steps-{options.worker}-{os.getpid()}-{len(worlds)}"
                lines = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            os.write(lines, f"{time.time():.6f} {step + 1} {world} {first} {last} {epoch}\n".encode())


if __name__ == "__main__":
    main()
