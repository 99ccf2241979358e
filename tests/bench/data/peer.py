"""Measures torchvision and DataLoader with the same files as roundhouse-data's example `bench`.

peer.py make DIRECTORY [N]       writes N JPEG images of 400x300 in 4 classes (default 512)
peer.py measure DIRECTORY [W]    prints images/s with W worker processes (default 1), as a row of the same table
peer.py compare DIRECTORY FILE   compares the pixels of `bench DIRECTORY --dump FILE` with torchvision's
"""

import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision import datasets, transforms

BATCH = 64


def make(directory: Path, count: int) -> None:
    """Writes sums of smooth noise at several scales. Their spectra, file sizes and decoding times
    are like those of photographs."""
    rng = np.random.default_rng(1)
    for number in range(count):
        pixels = np.zeros((300, 400, 3))
        for scale in (4, 8, 16, 32, 64, 128):
            noise = rng.normal(size=(300 // scale + 2, 400 // scale + 2, 3))
            layer = [Image.fromarray(noise[:, :, c].astype(np.float32)).resize((400, 300), Image.BICUBIC) for c in range(3)]
            pixels += np.stack([np.asarray(c) for c in layer], axis=2) * 8 * scale**0.5
        pixels += rng.normal(size=pixels.shape) * 4
        path = directory / f"class{number % 4}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels + 128).clip(0, 255).astype(np.uint8)).save(path, quality=90)


def measure(directory: Path, num_workers: int) -> None:
    torch.set_num_threads(1)
    transform = transforms.Compose([
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ])
    dataset = datasets.ImageFolder(str(directory), transform)
    loader = torch.utils.data.DataLoader(
        dataset, BATCH, shuffle=True, num_workers=num_workers, drop_last=True, persistent_workers=True)
    for _ in range(2):
        iterator = iter(loader)
        started, count = time.perf_counter(), 0
        for images, _ in iterator:
            count += len(images)
        per_second = count / (time.perf_counter() - started)
    print(f"| torchvision + DataLoader | {num_workers} | {per_second:.0f} | {per_second / num_workers:.0f} |")


def compare(directory: Path, dump: Path) -> None:
    transform = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224)])
    dataset = datasets.ImageFolder(str(directory), transform)
    ours = np.fromfile(dump, dtype=np.uint8).reshape(-1, 224, 224, 3)
    assert len(ours) == len(dataset), (len(ours), len(dataset))
    difference = np.stack([np.abs(np.asarray(image).astype(int) - mine) for (image, _), mine in zip(dataset, ours)])
    print(f"difference to torchvision in 1/255: mean {difference.mean():.3f}, "
          f"99.9 % {np.percentile(difference, 99.9):.0f}, highest {difference.max()}")


if __name__ == "__main__":
    command, directory, *rest = sys.argv[1:]
    if command == "make":
        make(Path(directory), int(rest[0]) if rest else 512)
    elif command == "measure":
        measure(Path(directory), int(rest[0]) if rest else 1)
    elif command == "compare":
        compare(Path(directory), Path(rest[0]))
    else:
        sys.exit(__doc__)
