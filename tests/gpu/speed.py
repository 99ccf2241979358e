"""The two trainings whose speed on a GPU people compare, and small ones that stand for them on CPUs."""
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


def cases(is_small):
    """Name, unit, and units of a step."""
    if is_small:
        return [("resnet18", "images/s", 32), ("gpt2", "tokens/s", 8 * 128)]
    return [("resnet50", "images/s", 256), ("gpt2-124m", "tokens/s", 16 * 1024)]


def write(name, root, is_small):
    """Synthetic data, and the configuration of an endless training of it."""
    endless = {"steps": 1_000_000_000, "seed": 7}
    if is_small:
        ours.write_data(root)
        return ours.CONFIGURATIONS[name] | endless
    if name == "resnet50":
        for at in range(NUM_IMAGES):
            folder = root / "train" / f"class{at % 1000:04}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{at:05}.png").write_bytes(ours.png(224, os.urandom))
    else:
        root.mkdir(parents=True)
        tokens = struct.unpack(f"<{NUM_TOKENS}H", os.urandom(2 * NUM_TOKENS))
        (root / "train.bin").write_bytes(struct.pack(f"<{NUM_TOKENS}H", *(token % 50257 for token in tokens)))
    return LARGE[name] | endless
