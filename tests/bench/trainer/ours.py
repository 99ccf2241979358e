"""The trainer's own processes over hand-written membership files, as its process tests start them."""
import json
import os
import pathlib
import signal
import socket
import statistics
import struct
import subprocess
import tempfile
import time
import zlib

CONFIGURATIONS = {
    "mlp": {
        "model": {"name": "mlp", "hidden": [256, 256]},
        "data": {"format": "idx", "path": "mlp"},
        "optimizer": {"name": "sgd", "learningRate": 0.01, "momentum": 0.9},
        "globalBatchSize": 64,
    },
    "resnet18": {
        # One group of statistics per pass, as the other side's batch normalization has.
        "model": {"name": "resnet18", "stem": "cifar", "ghostBatch": 0},
        "data": {"format": "imagefolder", "path": "resnet18", "image": {"size": 32}},
        "optimizer": {"name": "sgd", "learningRate": 0.01, "momentum": 0.9},
        "globalBatchSize": 32,
    },
    "gpt2": {
        "model": {
            "name": "gpt2", "layers": 4, "heads": 4, "width": 256, "context": 128, "vocabulary": 512, "dropout": 0,
        },
        "data": {"format": "tokens", "path": "gpt2", "train": "train.bin", "tokens": {"context": 128}},
        "optimizer": {"name": "adamw", "learningRate": 0.0001},
        "globalBatchSize": 8,
    },
}
WINDOWS = 5


def write_data(root):
    """Synthetic samples: 1,024 of each kind."""
    random = os.urandom
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
    gpt2 = root / "gpt2"
    gpt2.mkdir()
    tokens = (value % 512 for value in struct.unpack(f"<{1024 * 128 + 1}H", random(2 * (1024 * 128 + 1))))
    (gpt2 / "train.bin").write_bytes(b"".join(struct.pack("<H", token) for token in tokens))


def png(size, random):
    """An image of noise."""
    rows = b"".join(b"\0" + random(3 * size) for _ in range(size))

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def replace(path, text):
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.rename(path)


def status(directory, node):
    try:
        return json.loads((directory / f"run-{node}" / "rank-0.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {"phase": "Preparing", "step": 0}


def until(what, is_so, seconds=120):
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(0.05)


def measure(trainer, data, name, world, seconds, extra=None):
    """Median steps per second of several windows."""
    with tempfile.TemporaryDirectory() as place:
        directory = pathlib.Path(place)
        config = CONFIGURATIONS[name] | {"steps": 1_000_000_000, "seed": 7} | (extra or {})
        (directory / "config").write_text(json.dumps(config))
        ports = [free_port() for _ in range(world)]
        processes = []
        for node in range(world):
            (directory / f"run-{node}").mkdir()
            own = {
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "OMP_NUM_THREADS": "1",
                "OMP_WAIT_POLICY": "PASSIVE",
                "ROUNDHOUSE_POD_IP": "127.0.0.1",
                "ROUNDHOUSE_RENDEZVOUS_PORT": str(ports[node]),
                "ROUNDHOUSE_MEMBERSHIP_FILE": str(directory / f"membership-{node}"),
                "ROUNDHOUSE_TRAINER_CONFIG_FILE": str(directory / "config"),
                "ROUNDHOUSE_RUN_DIR": str(directory / f"run-{node}"),
                "ROUNDHOUSE_DATA_DIR": str(data),
                "ROUNDHOUSE_CHECKPOINT_DIR": str(directory / "volume"),
                "ROUNDHOUSE_CHECKPOINT_EVERY_SECONDS": "100000",
            }
            log = (directory / f"log-{node}").open("w")
            processes.append(subprocess.Popen([trainer], env=os.environ | own, stdout=log, stderr=log))
        try:
            until("the lobby", lambda: all(status(directory, node)["phase"] == "Lobby" for node in range(world)))
            for node in range(world):
                document = {
                    "generation": 1,
                    "action": "Join",
                    "nodeRank": node,
                    "nodes": world,
                    "procsPerWorker": 1,
                    "master": {"address": "127.0.0.1", "port": ports[0]},
                    "members": "bench",
                    "incarnation": {"podUid": str(node), "restarts": 0},
                    "issuedAt": "2026-01-01T00:00:00Z",
                }
                replace(directory / f"membership-{node}", json.dumps(document))
            until("steps", lambda: status(directory, 0)["step"] >= 20)
            rates = []
            for _ in range(WINDOWS):
                first, began = status(directory, 0)["step"], time.perf_counter()
                time.sleep(seconds / WINDOWS)
                # From change to change: the file is written at most every so often.
                at = status(directory, 0)["step"]
                until("a step", lambda: status(directory, 0)["step"] > at)
                rates.append((status(directory, 0)["step"] - first) / (time.perf_counter() - began))
            return statistics.median(rates)
        except TimeoutError as error:
            words = (directory / "log-0").read_text()[-2000:]
            raise SystemExit(f"{name}, {world} ranks: {error}\n{words}") from None
        finally:
            for process in processes:
                process.send_signal(signal.SIGKILL)
            for process in processes:
                process.wait()
