"""The script for the Python package: train.py's MLP with the same digits, batch and optimizer. The
package replaces train.py's checkpoints and its distribution of the samples. With --out each process
appends a line per committed step to its own file. With --sharded the processes of a worker share
the model by FSDP2."""
import argparse
import gzip
import os
import pathlib
import time

import torch
from torch.distributed.fsdp import fully_shard

import roundhouse as rh


def read(path, header):
    """The bytes of an IDX file after its header."""
    return torch.frombuffer(bytearray(gzip.decompress(path.read_bytes())[header:]), dtype=torch.uint8)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=10_000_000)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--sharded", action="store_true")
    options = parser.parse_args()
    out = open(options.out / f"steps-{os.getpid()}", "w", buffering=1, encoding="utf-8") if options.out else None

    labels = read(options.data / "train-labels-idx1-ubyte.gz", 8).long()
    images = read(options.data / "train-images-idx3-ubyte.gz", 16).view(len(labels), -1).float() / 255
    torch.manual_seed(7)
    net = torch.nn.Sequential(
        torch.nn.Linear(images.shape[1], 32), torch.nn.ReLU(), torch.nn.Linear(32, int(labels.max()) + 1)
    )
    if options.sharded:
        mesh = rh.replica_mesh()
        fully_shard(net[0], mesh=mesh)
        fully_shard(net, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    with rh.join(state={"net": net, "optimizer": optimizer}) as job:
        model = job.model(net)
        for step in job.indices(job.sampler(len(labels), 64, steps=options.steps, seed=7)):
            # A rank without samples trains on sample 0. The package ignores its gradients.
            mine = torch.tensor(step.indices or (0,))
            loss = torch.nn.functional.cross_entropy(model(images[mine]), labels[mine])
            loss.backward()
            if job.commit(loss, optimizer) and out:
                print(time.time(), job.generation, step.number, file=out)


if __name__ == "__main__":
    main()
