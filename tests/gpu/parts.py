"""What is tried, part by part. Each returns rows of the table, or raises."""
import dataclasses
import itertools
import json
import math
import pathlib
import signal
import statistics
import struct
import subprocess
import sys
import time

import machine
import numpy
import ours
import speed
from world import World

STEPS = 40
SWITCHES = {
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "tf32": {"precision": "tf32"},
    "deterministic": {"deterministic": True},
    "channels last": {"channelsLast": True},
    "bf16 gradients": {"ddp": {"compression": "bf16"}},
    "fp16 gradients": {"ddp": {"compression": "fp16"}},
    "static graph": {"ddp": {"staticGraph": True}},
    "four slices": {"slices": 4},
    "activation checkpointing": {"activationCheckpointing": "Blocks"},
    "micro-batches": {"microBatchSize": 4},
    "clipping": {"optimizer": {"name": "adamw", "learningRate": 0.001, "maxGradNorm": 1.0}},
    "moving average": {"optimizer": {"name": "sgd", "learningRate": 0.01, "ema": {"decay": 0.9}}},
}


@dataclasses.dataclass
class Setting:
    trainer: pathlib.Path
    place: pathlib.Path
    here: machine.Machine

    def __post_init__(self):
        self.data = self.place / "data"
        ours.write_data(self.data)
        self.numbers = itertools.count()

    def world(self, config, nodes, here=None, data=None):
        here = here or self.here
        directory = self.place / f"job-{next(self.numbers)}"
        return World(self.trainer, directory, data or self.data, config, nodes, here.variables)

    def audit(self, world):
        command = [self.trainer, "audit", world.directory / "state"]
        found = subprocess.run(command, capture_output=True, text=True, env={"LD_LIBRARY_PATH": self.here.library_path})
        assert found.returncode == 0 and "proven" in found.stdout, found.stdout + found.stderr

    def is_small(self):
        return self.here.device == "cpu"


def config_of(name, steps=STEPS, **extra):
    return ours.CONFIGURATIONS[name] | {"steps": steps, "seed": 7} | extra


def weights_of(path):
    """Tensors of a safetensors file."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    body = raw[8 + length :]
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            tensors[name] = numpy.frombuffer(body[start:end], dtype=numpy.float32)
    return tensors


def apart(left, right):
    """The greatest difference relative to the greatest weight of a tensor."""
    assert left.keys() == right.keys()
    return max(float(numpy.abs(left[name] - right[name]).max() / max(numpy.abs(right[name]).max(), 1e-12)) for name in left)


def trained(setting, config, nodes, here=None):
    """Weights after a whole training."""
    with setting.world(config, nodes, here) as world:
        everybody = range(nodes)
        world.prepared(everybody)
        world.issue(1, everybody)
        world.complete(everybody, 180)
        setting.audit(world)
        return weights_of(world.directory / "weights.safetensors")


def worlds(setting):
    """N workers on one GPU train what one does, and what the CPU does over Gloo."""
    on_cpu = machine.Machine("cpu", "", setting.here.library_path)
    rows = []
    for name, sizes in [("mlp", (2, 4)), ("gpt2", (2, 4)), ("resnet18", (2,))]:
        steps = STEPS if name == "mlp" or not setting.is_small() else 6
        extra = {}
        if name == "resnet18":
            # Groups of 8 places: shards are cut at their borders. Labels are noise, so rounding grows fast.
            steps, extra = 3, {"model": ours.CONFIGURATIONS[name]["model"] | {"ghostBatch": 8}}
        config = config_of(name, steps, **extra)
        one = trained(setting, config, 1)
        for size in sizes:
            found = apart(trained(setting, config, size), one)
            # Sums of 32-bit floats in another order, of which the noise that is learned here makes more in each step.
            assert found < (0.1 if name == "resnet18" else 1e-2), f"{name}: {size} workers differ from one by {found:.1e}"
            rows.append((f"{name}, {size} workers beside 1", f"{found:.1e}"))
        if name != "resnet18":
            config = config | {"slices": 4, "deterministic": True}
            found = apart(trained(setting, config, 4), trained(setting, config, 1))
            assert found == 0, f"{name}: with slices 4 workers differ from one by {found:.1e}"
            rows.append((f"{name}, 4 workers beside 1, with 4 slices", "equal bit for bit"))
        if not setting.is_small() and name != "resnet18":
            found = apart(trained(setting, config_of(name), 2, on_cpu), one)
            assert found < 1e-2, f"{name}: CPU and GPU differ by {found:.1e}"
            rows.append((f"{name}, 2 workers over Gloo on CPUs beside 1 on the GPU", f"{found:.1e}"))
    return rows


def waits(setting):
    """No call in a step makes the host wait for the GPU: libtorch refuses each, from the second step of a generation on."""
    here = dataclasses.replace(setting.here, extra={"ROUNDHOUSE_HOST_SYNCS": "refuse"})
    rows = []
    for name, nodes in [("mlp", 1), ("mlp", 2), ("gpt2", 1), ("gpt2", 2), ("resnet18", 1)]:
        config = config_of(name, 4 if setting.is_small() and name != "mlp" else STEPS)
        if name == "resnet18":
            config["model"] = config["model"] | {"ghostBatch": 8}
        trained(setting, config, nodes, here)
        found = "a CPU's host never waits" if setting.here.device == "cpu" else "none"
        rows.append((f"calls that make the host wait in a step: {name}, {nodes} workers", found))
    return rows


def switches(setting):
    """Every setting of the step trains with two workers."""
    rows = []
    for name, extra in SWITCHES.items():
        model = "resnet18" if name == "channels last" else "gpt2" if name in ("bf16", "fp16", "activation checkpointing") else "mlp"
        config = config_of(model, 4 if setting.is_small() and model != "mlp" else STEPS, **extra)
        if model == "resnet18":
            config["model"] = config["model"] | {"ghostBatch": 8}
        weights = trained(setting, config, 2)
        assert all(numpy.isfinite(tensor).all() for tensor in weights.values()), name
        rows.append((f"{name}: {model}, 2 workers", "trained, audit proven"))
    return rows


def kills(setting):
    """A worker is killed, hangs, leaves and comes back; the others keep their state."""
    rows = []
    with setting.world(config_of("mlp", 100_000_000), 4) as world:
        world.prepared(range(4))
        world.issue(1, range(4))
        world.until("steps", lambda: world.step() >= 20)
        before, began = world.step(), time.monotonic()
        world.kill(3)
        world.issue(2, [0, 1, 2])
        world.until("steps of three", lambda: world.status(0)["generation"] == 2 and world.step() > before)
        rows.append(("a worker of 4 is killed: until the others step again", f"{time.monotonic() - began:.1f} s"))
        world.start(3)
        world.prepared([3])
        before, began = world.step(), time.monotonic()
        world.issue(3, range(4))
        world.until("steps of four", lambda: world.status(3)["generation"] == 3 and world.step(3) > before)
        rows.append(("it comes back: until it steps", f"{time.monotonic() - began:.1f} s"))
        before, began = world.step(), time.monotonic()
        world.kill(2, signal.SIGSTOP)
        world.issue(4, [0, 1, 3])
        world.until("steps without it", lambda: world.status(0)["generation"] == 4 and world.step() > before)
        rows.append(("a worker hangs: until the others step again, by an abort", f"{time.monotonic() - began:.1f} s"))
        world.kill(2)
        # Rank 0, which hosts the store, dies while the next generation forms.
        before = world.step(1)
        world.issue(5, [0, 1, 3])
        world.kill(0)
        began = time.monotonic()
        world.issue(6, [1, 3])
        world.until("steps of two", lambda: world.status(1)["generation"] == 6 and world.step(1) > before)
        rows.append(("rank 0 is killed while a generation forms: until steps", f"{time.monotonic() - began:.1f} s"))
        assert world.status(1)["step"] > before
        setting.audit(world)
    return rows


def reforms(setting):
    """A hundred generations: nothing is left behind by those before."""
    generations = 20 if setting.is_small() else 100
    early = generations // 4

    def counts(world):
        found = {}
        for node in (0, 1):
            process = pathlib.Path("/proc") / str(world.processes[node].pid)
            found[f"descriptors of worker {node}"] = len(list((process / "fd").iterdir()))
            found[f"threads of worker {node}"] = len(list((process / "task").iterdir()))
            memory = world.metric(node, "device_memory_reserved_bytes")
            if memory is not None:
                found[f"GPU memory of worker {node}, MiB"] = round(memory / 2**20)
        return found

    with setting.world(config_of("mlp", 100_000_000), 2) as world:
        world.prepared(range(2))
        spans, first = [], None
        for generation in range(1, generations + 1):
            began = time.monotonic()
            world.issue(generation, [0, 1] if generation % 2 else [1, 0])
            world.until(
                f"generation {generation}",
                lambda: all(world.status(node)["generation"] == generation for node in (0, 1)) and world.status(0)["phase"] == "Training",
            )
            spans.append(time.monotonic() - began)
            if generation == early:
                time.sleep(1)
                first = counts(world)
        time.sleep(1)
        last = counts(world)
        setting.audit(world)
    rows = [(f"{generations} generations: median from the file to training", f"{statistics.median(spans):.2f} s")]
    for name, before in first.items():
        rows.append((f"{name} after {early} and after {generations} generations", f"{before}, {last[name]}"))
        assert last[name] <= before + max(8, before // 10), f"{name} grow from {before} to {last[name]}"
    return rows


def throughput(setting):
    """Beside PyTorch eager on this machine, in turns."""
    rows = []
    for name, unit, per_step in speed.cases(setting.is_small()):
        data = setting.place / f"speed-{name}"
        config = speed.write(name, data, setting.is_small())
        mine, theirs = [], []
        for _ in range(1 if setting.is_small() else 2):
            with setting.world(config, 1, data=data) as world:
                mine.append(per_step * ours.rate(world, 1, 4 if setting.is_small() else 15))
            peer = [sys.executable, speed.PEER, "--model", name, "--device", setting.here.device, "--seconds", "4" if setting.is_small() else "15"]
            if not setting.is_small():
                peer += ["--precision", "bf16"]
            found = subprocess.run(peer, capture_output=True, text=True, timeout=180)
            assert found.returncode == 0, found.stderr[-1500:]
            theirs.append(per_step * float(found.stdout))
        own, other = statistics.median(mine), statistics.median(theirs)
        assert math.isfinite(own)
        rows.append((f"{name}, {unit}: ours, PyTorch eager, ratio", f"{own:,.0f}, {other:,.0f}, {own / other:.2f}"))
    return rows


ALL = {"worlds": worlds, "waits": waits, "switches": switches, "kills": kills, "reforms": reforms, "speed": throughput}
