"""Learns handwritten digits with FSDP2: the processes of a worker share one copy of the model."""
import gzip
import os
import pathlib

import torch
from torch.distributed.fsdp import fully_shard
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
    """Images, [N, 64] from 0 to 1, and labels, [N]."""
    labels = read(f"{split}-labels-idx1-ubyte.gz", 8).long()
    images = read(f"{split}-images-idx3-ubyte.gz", 16).view(-1, 64).float() / 255
    return TensorDataset(images, labels)


def main():
    torch.manual_seed(1)
    dataset, test = digits("train"), digits("t10k")
    mesh = rh.replica_mesh()
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.ReLU(),
        torch.nn.Linear(256, 256), torch.nn.ReLU(),
        torch.nn.Linear(256, 10),
    )
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def right(batch):
        images, labels = batch
        scores = model(images)
        loss = cross_entropy(scores, labels, reduction="sum").item()
        return {"loss": loss, "accuracy": (scores.argmax(1) == labels).sum().item()}

    def show(means):
        if job.rank == 0:
            print(f"{means['accuracy']:.1%} of the test images are read right")

    with rh.join(state={"model": model, "optimizer": optimizer}) as job:
        net = job.model(model)
        sampler = job.sampler(len(dataset), BATCH, epochs=EPOCHS, seed=1)
        evaluation = rh.Evaluation(test, right, every_epochs=EPOCHS, then=show)
        for batch in job.steps(dataset, sampler, evaluation=evaluation):
            x, y = batch
            loss = cross_entropy(net(x), y)
            loss.backward()
            if job.commit(loss, optimizer, max_grad_norm=1.0) and batch.step.ends_epoch and job.rank == 0:
                print(f"epoch {batch.step.epoch + 1} of {EPOCHS}: loss {job.loss:.4f}")
        job.save_result("weights.safetensors")


if __name__ == "__main__":
    main()
