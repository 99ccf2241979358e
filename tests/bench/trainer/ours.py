"""Measures the trainer's steps per second from outside, with synthetic data."""
import io
import json
import pathlib
import statistics
import struct
import tarfile
import tempfile
import time
import zlib
from random import Random

from ports import free_port
from world import World, output_of_rank_0, until

# One thread for each process, as of the other programs.
THREADS = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


def gpt2(**sizes):
    """A GPT-2 of these sizes, on sequences of 128 tokens."""
    return {
        "model": {"name": "gpt2", "context": 128, "dropout": 0} | sizes,
        "data": {"format": "tokens", "path": "gpt2", "train": "train.bin", "tokens": {"context": 128}},
        "optimizer": {"name": "adamw", "learningRate": 0.0001},
        "globalBatchSize": 8,
    }


CONFIGURATIONS = {
    "mlp": {
        "model": {"name": "mlp", "hidden": [256, 256]},
        "data": {"format": "idx", "path": "mlp"},
        "optimizer": {"name": "sgd", "learningRate": 0.01, "momentum": 0.9},
        "globalBatchSize": 64,
    },
    "resnet18": {
        # One group of statistics per pass, as in PyTorch's batch normalization.
        "model": {"name": "resnet18", "stem": "cifar", "ghostBatch": 0},
        "data": {"format": "imagefolder", "path": "resnet18", "image": {"size": 32}},
        "optimizer": {"name": "sgd", "learningRate": 0.01, "momentum": 0.9},
        "globalBatchSize": 32,
    },
    "gpt2": gpt2(layers=4, heads=4, width=256, vocabulary=512),
    "gpt2-wide": gpt2(layers=8, heads=8, width=512, vocabulary=8192),
    "switch": gpt2(name="switch", layers=4, heads=4, width=256, vocabulary=512, numExperts=8),
    "bert": {
        "model": {
            "name": "bert", "layers": 2, "heads": 4, "width": 128, "context": 128, "vocabulary": 512, "dropout": 0,
        },
        "data": {"format": "tokens", "path": "gpt2", "train": "train.bin", "tokens": {"context": 128, "vocabulary": 512}},
        "optimizer": {"name": "adamw", "learningRate": 0.0001},
        "globalBatchSize": 8,
    },
}
WINDOWS = 5


def write_data(root):
    """Writes synthetic samples, 1,024 of each kind. They are the same in each run."""
    random = Random(7).randbytes
    mlp = root / "mlp"
    mlp.mkdir(parents=True)
    for name, number in [("train", 1024), ("t10k", 64)]:
        (mlp / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 0x803, number, 8, 8) + random(64 * number))
        labels = bytes(at % 10 for at in range(number))
        (mlp / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, number) + labels)
    for at in range(1024):
        folder = root / "resnet18" / "train" / f"class{at % 10}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{at:04}.png").write_bytes(png(32, random))
    tars = root / "webdataset" / "train"
    tars.mkdir(parents=True)
    for shard in range(4):
        with tarfile.open(tars / f"{shard}.tar", "w") as tar:
            for at in range(256):
                for suffix, body in ((".png", png(32, random)), (".cls", str(at % 10).encode())):
                    member = tarfile.TarInfo(f"{at:04}{suffix}")
                    member.size = len(body)
                    tar.addfile(member, io.BytesIO(body))
    gpt2 = root / "gpt2"
    gpt2.mkdir()
    tokens = (value % 512 for value in struct.unpack(f"<{1024 * 128 + 1}H", random(2 * (1024 * 128 + 1))))
    (gpt2 / "train.bin").write_bytes(b"".join(struct.pack("<H", token) for token in tokens))


def png(size, random):
    """A PNG image of random pixels."""
    rows = b"".join(b"\0" + random(3 * size) for _ in range(size))

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def measure(trainer, data, name, world, seconds, extra=None):
    """The median steps per second over several windows."""
    config = CONFIGURATIONS[name] | {"steps": 1_000_000_000, "seed": 7} | (extra or {})
    with tempfile.TemporaryDirectory() as place, World(trainer, place, data, config, world, lambda _: THREADS) as workers:
        return rate(workers, world, seconds)


def bare(program, data, name, world, steps):
    """The steps per second of the same step without membership, agreement, ledger and metrics."""
    with tempfile.TemporaryDirectory() as place:
        config = pathlib.Path(place) / "config"
        config.write_text(json.dumps(CONFIGURATIONS[name] | {"steps": 1, "seed": 7}))
        given = {"CONFIG": config, "DATA_DIR": data, "WORLD_SIZE": world, "PORT": free_port(), "STEPS": max(1, int(steps))}
        variables = THREADS | {key: str(value) for key, value in given.items()}
        return float(output_of_rank_0([[program]] * world, [variables | {"RANK": str(rank)} for rank in range(world)]))


def rate(workers, world, seconds):
    """Starts the first generation, and returns the median steps per second over several windows."""
    nodes = range(world)
    workers.prepared(nodes)
    workers.issue(1, nodes)
    # The first steps are not measured, as for the other programs.
    workers.until("steps", lambda: workers.step() >= 5)
    rates = []
    for _ in range(WINDOWS):
        first, started = workers.step(), time.perf_counter()
        time.sleep(seconds / WINDOWS)
        # A window ends at a change of the status file, which the trainer writes at intervals.
        at = workers.step()
        until("a step", lambda: workers.step() > at)
        rates.append((workers.step() - first) / (time.perf_counter() - started))
    return statistics.median(rates)


def data_wait(trainer, data, seconds):
    """The fraction of the time that resnet18 on one core waits for samples from WebDataset."""
    image = {"size": 32, "augment": ["crop", "flip"]}
    config = CONFIGURATIONS["resnet18"] | {
        "data": {"format": "webdataset", "path": "webdataset", "image": image},
        "steps": 1_000_000_000,
        "seed": 7,
    }
    threads = {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as place, World(trainer, place, data, config, 1, lambda _: threads) as workers:
        rate(workers, 1, seconds)
        return workers.metric(0, "data_wait_ratio")


def stalls(trainer, data, number):
    """The seconds for which each of a number of checkpoints pauses training, and the bytes of a
    checkpoint."""
    # The checkpoint has 38 million weights and AdamW's two moments of each.
    config = CONFIGURATIONS["mlp"] | {
        "model": {"name": "mlp", "hidden": [6144, 6144]},
        "optimizer": {"name": "adamw", "learningRate": 0.0001},
        "steps": 1_000_000_000,
        "seed": 7,
    }
    variables = {"OMP_NUM_THREADS": "1", "ROUNDHOUSE_CHECKPOINT_EVERY_STEPS": "10", "ROUNDHOUSE_CHECKPOINT_KEEP": "2"}
    found = []
    with tempfile.TemporaryDirectory() as place, World(trainer, place, data, config, 1, lambda _: variables) as workers:
        workers.prepared([0])
        workers.issue(1, [0])
        step = 0
        for _ in range(number):
            workers.until("a checkpoint", lambda: (workers.metric(0, "checkpoint_step") or 0) > step, 300)
            step = workers.metric(0, "checkpoint_step")
            found.append(workers.metric(0, "checkpoint_stall_seconds"))
        return found, workers.metric(0, "checkpoint_bytes")
