"""Learns handwritten digits under torchrun, data-parallel. A restart loads the checkpoint."""
import gzip
import os
import pathlib

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

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

    dist.init_process_group("gloo")
    first, checkpoint = 0, pathlib.Path(os.environ.get("CHECKPOINT", "checkpoint.pt"))
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        first = saved["epoch"]
        for name, entry in [("model", model), ("optimizer", optimizer), ("schedule", schedule)]:
            entry.load_state_dict(saved[name])
    net = DistributedDataParallel(model)
    sampler = DistributedSampler(dataset, seed=1)
    loader = DataLoader(dataset, batch_size=BATCH // dist.get_world_size(), sampler=sampler)
    for epoch in range(first, EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1} of {EPOCHS}: loss {loss.item():.4f}")
            saved = {"model": model, "optimizer": optimizer, "schedule": schedule}
            saved = {name: entry.state_dict() for name, entry in saved.items()}
            torch.save({"epoch": epoch + 1, **saved}, checkpoint.with_suffix(".partial"))
            checkpoint.with_suffix(".partial").rename(checkpoint)
    dist.destroy_process_group()

    images, labels = digits("t10k").tensors
    right = (model(images).argmax(1) == labels).float().mean().item()
    print(f"{right:.1%} of the test images are read right")


if __name__ == "__main__":
    main()
