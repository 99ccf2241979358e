"""The two models whose speed on a GPU is usually compared, and small models in their place on
CPUs."""
import dataclasses
import os
import pathlib
import struct

import ours

PEER = pathlib.Path(ours.__file__).parent / "peer.py"
LARGE = {
    "resnet50": {
        "model": {"name": "resnet50", "ghostBatch": 0},
        "data": {"format": "imagefolder", "path": ".", "image": {"size": 224}},
        "optimizer": {"name": "sgd", "learningRate": 0.01, "momentum": 0.9},
        "globalBatchSize": 256,
        "precision": "bf16",
        "channelsLast": True,
    },
    "gpt2-124m": {
        "model": {
            "name": "gpt2", "layers": 12, "heads": 12, "width": 768, "context": 1024, "vocabulary": 50304, "dropout": 0,
        },
        "data": {"format": "tokens", "path": ".", "train": "train.bin", "tokens": {"context": 1024}},
        "optimizer": {"name": "adamw", "learningRate": 0.0001},
        "globalBatchSize": 16,
        "precision": "bf16",
    },
}
NUM_IMAGES, NUM_TOKENS = 512, 4_000_000
# Their pixels have more bytes than a process caches (512 MiB), so they are read, decoded and
# uploaded in each epoch.
NUM_IMAGES_READ = 4_000


@dataclasses.dataclass
class Case:
    name: str
    model: str
    """The model of the peer program, which has its batches in memory."""
    unit: str
    per_step: int
    num_images: int = NUM_IMAGES
    default_ghosts: bool = False
    """Whether ours uses the default ghost batches. The peer program has none."""


def cases(is_small):
    if is_small:
        return [Case("resnet18", "resnet18", "images/s", 32), Case("gpt2", "gpt2", "tokens/s", 8 * 128)]
    return [
        Case("resnet50", "resnet50", "images/s", 256),
        Case("gpt2-124m", "gpt2-124m", "tokens/s", 16 * 1024),
        Case("resnet50 with its default ghost batches", "resnet50", "images/s", 256, default_ghosts=True),
        Case("resnet50 that reads images", "resnet50", "images/s", 256, num_images=NUM_IMAGES_READ),
    ]


def write(case, root, is_small):
    """Writes synthetic data, and returns the configuration of endless training on it."""
    endless = {"steps": 1_000_000_000, "seed": 7}
    if is_small:
        ours.write_data(root)
        return ours.CONFIGURATIONS[case.name] | endless
    config = LARGE[case.model] | endless
    if case.model == "resnet50":
        write_images(root / "train", case.num_images)
    else:
        root.mkdir(parents=True)
        tokens = struct.unpack(f"<{NUM_TOKENS}H", os.urandom(2 * NUM_TOKENS))
        (root / "train.bin").write_bytes(struct.pack(f"<{NUM_TOKENS}H", *(token % 50257 for token in tokens)))
    if case.default_ghosts:
        config["model"] = {key: value for key, value in config["model"].items() if key != "ghostBatch"}
    return config


def write_images(root, number):
    """Writes `number` files. They are hard links to at most NUM_IMAGES images."""
    names = [root / f"class{at % 1000:04}" / f"{at:05}.png" for at in range(number)]
    for at, name in enumerate(names):
        name.parent.mkdir(parents=True, exist_ok=True)
        if at < NUM_IMAGES:
            name.write_bytes(ours.png(224, os.urandom))
        else:
            name.hardlink_to(names[at % NUM_IMAGES])
