"""The script for torchrun: the trainer's MLP with the same digits, batch and optimizer, with
DistributedDataParallel over Gloo.

It follows PyTorch's advice for torchrun: a checkpoint has all state; the script writes it every
--every steps and loads it at each start. Each rank appends a line per committed step to its own
file: time, step, world size, first and last place of its samples in the epoch, epoch.
"""
import argparse
import datetime
import gzip
import os
import pathlib
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def read(path, header):
    """The bytes of an IDX file after its header."""
    return torch.frombuffer(bytearray(gzip.decompress(path.read_bytes())[header:]), dtype=torch.uint8)


def replace(path, write):
    """Replaces a file by renaming, so that no reader sees an incomplete file, even after a
    crash."""
    partial = path.with_suffix(".partial")
    write(partial)
    partial.rename(path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=10_000_000)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--timeout", type=int, help="timeout of collectives in seconds; default: PyTorch's")
    options = parser.parse_args()

    limit = options.timeout and datetime.timedelta(seconds=options.timeout)
    dist.init_process_group("gloo", timeout=limit)
    rank, world = dist.get_rank(), dist.get_world_size()

    labels = read(options.data / "train-labels-idx1-ubyte.gz", 8).long()
    images = read(options.data / "train-images-idx3-ubyte.gz", 16).view(len(labels), -1).float() / 255
    batch = 64
    torch.manual_seed(7)
    net = torch.nn.Sequential(
        torch.nn.Linear(images.shape[1], 32), torch.nn.ReLU(), torch.nn.Linear(32, int(labels.max()) + 1)
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    step, epoch, cursor = 0, 0, 0
    checkpoint = options.out / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        step, epoch, cursor = state["step"], state["epoch"], state["cursor"]
    model = DistributedDataParallel(net)

    ordered, order = None, None
    # The time distinguishes processes of containers, which often have the same process id.
    lines = os.open(options.out / f"steps-{rank}-{os.getpid()}-{time.time_ns()}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    while step < options.steps:
        if ordered != epoch:
            ordered, order = epoch, torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        size = min(batch, len(labels) - cursor)
        first, last = cursor + size * rank // world, cursor + size * (rank + 1) // world
        mine = order[first:last]
        # DDP divides the sum over the ranks by their number.
        loss = torch.nn.functional.cross_entropy(model(images[mine]), labels[mine], reduction="sum") * world / size
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step, cursor = step + 1, cursor + size
        os.write(lines, f"{time.time():.6f} {step} {world} {first} {last} {epoch}\n".encode())
        if cursor == len(labels):
            epoch, cursor = epoch + 1, 0
        if rank == 0 and step % options.every == 0:
            state = {
                "net": net.state_dict(),
                "optimizer": optimizer.state_dict(),
                "step": step,
                "epoch": epoch,
                "cursor": cursor,
            }
            replace(checkpoint, lambda partial: torch.save(state, partial))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
