"""Learns handwritten digits with a loop over Accelerate, elastic: workers may die, leave and
join."""
import gzip
import os
import pathlib

import torch
from roundhouse.hf import Accelerator
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

DATA = pathlib.Path(os.environ.get("DATA") or pathlib.Path(__file__).parent.parent / "data" / "digits")
OUT = pathlib.Path(os.environ.get("OUT", "digits"))
EPOCHS = int(os.environ.get("EPOCHS", "20"))


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
    # A step has 2 x 32 samples over all workers.
    accelerator = Accelerator(epochs=EPOCHS, gradient_accumulation_steps=2, cpu=True)
    layers = torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16 * 8 * 8, 10)
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train, test = DataLoader(digits("train"), batch_size=32, shuffle=True), DataLoader(digits("t10k"), batch_size=64)
    steps = EPOCHS * (len(train) + 1) // 2
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    model, optimizer, train, test, schedule = accelerator.prepare(model, optimizer, train, test, schedule)

    for epoch in range(accelerator.epochs_done, EPOCHS):
        for images, labels in train:
            with accelerator.accumulate(model):
                accelerator.backward(cross_entropy(model(images), labels))
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            right = [accelerator.gather_for_metrics(model(images).argmax(1) == labels) for images, labels in test]
        model.train()
        accuracy = torch.cat(right).float().mean().item()
        if accelerator.is_main_process:
            print(f"epoch {epoch + 1}: loss {accelerator.job.loss:.4f}, {accuracy:.1%} of the test images are read right")
    accelerator.wait_for_everyone()
    accelerator.save_model(model, OUT)
    accelerator.end_training()


if __name__ == "__main__":
    main()
