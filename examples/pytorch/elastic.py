"""Learns handwritten digits, data-parallel and elastic: workers may die, leave and join."""
import gzip
import os
import pathlib

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import roundhouse as rh

DATA = pathlib.Path(os.environ.get("DATA") or pathlib.Path(__file__).parent.parent / "data" / "digits")
EPOCHS = 20
BATCH = 64


def read(name, header):
    """The bytes of an IDX file after its header."""
    file = bytearray(gzip.decompress((DATA / name).read_bytes()))
    return torch.frombuffer(file, dtype=torch.uint8)[header:]


def digits(split):
    """Images, [N, 1, 8, 8] from 0 to 1, and labels, [N]."""
    labels = read(f"{split}-labels-idx1-ubyte.gz", 8).long()
    images = read(f"{split}-images-idx3-ubyte.gz", 16).view(-1, 1, 8, 8).float() / 255
    return TensorDataset(images, labels)


def main():
    torch.manual_seed(1)
    dataset = digits("train")
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(16 * 8 * 8, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * (len(dataset) // BATCH + 1))

    with rh.join(state={"model": model, "optimizer": optimizer, "schedule": schedule}) as job:
        net = job.model(model)
        sampler = job.sampler(len(dataset), BATCH, epochs=EPOCHS, seed=1)
        for batch in job.steps(dataset, sampler):
            x, y = batch
            loss = cross_entropy(net(x), y)
            loss.backward()
            if job.commit(loss, optimizer, schedule) and batch.step.ends_epoch and job.rank == 0:
                print(f"epoch {batch.step.epoch + 1} of {EPOCHS}: loss {loss.item():.4f}")
        job.save_result("weights.safetensors")

    images, labels = digits("t10k").tensors
    right = (model(images).argmax(1) == labels).float().mean().item()
    print(f"{right:.1%} of the test images are read right")


if __name__ == "__main__":
    main()
