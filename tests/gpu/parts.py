"""The parts of the check. Each returns rows of the table."""
import dataclasses
import pathlib
import statistics
import math
import os
import subprocess
import sys
import time

import faults
import machine
import ours
import speed
from setting import apart, config_of, losses_apart, same_bits, trained

# AdamW turns the rounding of a gradient near 0 into a full update, so comparisons of weights use
# SGD.
PLAIN = {"name": "sgd", "learningRate": 0.01, "momentum": 0.9}
# The effect of a setting on the weights of a short training: another order of sums ("sums"), 16
# bits instead of 32 ("rounds"), or another intended effect ("other"). The last two must change the
# weights.
SWITCHES = {
    "bf16": ("rounds", {"precision": "bf16"}),
    "fp16": ("rounds", {"precision": "fp16"}),
    "tf32": ("rounds on GPUs", {"precision": "tf32"}),
    "deterministic": ("sums", {"deterministic": True}),
    "no measuring of kernels": ("sums", {"cudnnBenchmark": False}),
    "channels last": ("sums", {"channelsLast": True}),
    "bf16 gradients": ("rounds", {"ddp": {"compression": "bf16"}}),
    "fp16 gradients": ("rounds", {"ddp": {"compression": "fp16"}}),
    "PowerSGD gradients": ("other", {"ddp": {"compression": "PowerSGD", "powerSGD": {"startStep": 2}}}),
    "static graph": ("sums", {"ddp": {"staticGraph": True}}),
    "four slices": ("sums", {"slices": 4}),
    "activation checkpointing": ("sums", {"activationCheckpointing": "Blocks"}),
    "micro-batches": ("sums", {"microBatchSize": 4}),
    "clipping": ("other", {"optimizer": PLAIN | {"maxGradNorm": 0.01}}),
    "moving average": ("other", {"optimizer": PLAIN | {"ema": {"decay": 0.9}}}),
}
STEPS_OF_A_SWITCH, MOST_OF_A_SWITCH = 6, 5e-2
MODEL_OF_SWITCH = {
    "channels last": "resnet18", "no measuring of kernels": "resnet18",
    "bf16": "gpt2", "fp16": "gpt2", "activation checkpointing": "gpt2",
}
# The relative difference of losses and weights that 32-bit sums in another order cause, before
# further steps amplify it.
FIRST_STEPS, TOLERANCE = 2, 1e-5
# In a ResNet, rounding decides whether an activation near 0 passes a ReLU. Each such activation is
# one of the 32,768 addends of the gradient of a channel's bias, which starts at 0. With slices the
# comparison is bit for bit. GPU kernels sum in more orders than CPU kernels, and the order depends
# on which kernel cuDNN measures as the fastest.
TOLERANCES = {"resnet18": (1e-4, 5e-2)}
TOLERANCES_OF_GPUS = {"resnet18": (1e-3, 5e-2)}


def tolerances(setting):
    return TOLERANCES if setting.is_small() else TOLERANCES_OF_GPUS


def smoke(setting):
    """Cases on which all other parts rely, one after the other: one worker, two workers, larger
    models, a lost worker."""

    def trains(name, nodes, **extra):
        def tried():
            started = time.monotonic()
            losses = trained(setting, config_of(name, 10, **extra), nodes).losses
            assert all(map(math.isfinite, losses)), losses
            return f"10 steps, {time.monotonic() - started:.1f} s with start and end"

        return f"{name}, {nodes} workers{', ' if extra else ''}{', '.join(extra)}", tried

    cases = [trains("mlp", 1), trains("mlp", 2), trains("gpt2", 1, precision="bf16"), trains("resnet18", 1, deterministic=True)]
    if not setting.is_small():
        cases.append(trains("gpt2", 3, slices=4, deterministic=True))
    at_once, setting.at_once = setting.at_once, 1
    try:
        return setting.each(cases) + faults.points(setting, points=["Backward"], victims=[1])
    finally:
        setting.at_once = at_once


def worlds(setting):
    """N workers on one GPU train the same as one worker, and as workers on CPUs over Gloo."""
    on_cpu = machine.Machine("cpu", "", setting.here.library_path)
    cases = []
    for name in ("mlp", "gpt2", "bert", "resnet18"):
        config = config_of(name, FIRST_STEPS, optimizer=PLAIN)
        others = [(f"{size} workers", size, None) for size in (2, 4)]
        if not setting.is_small():
            others.append(("2 workers over Gloo on CPUs", 2, on_cpu))
        cases.append((f"{name}, {FIRST_STEPS} steps: {', '.join(other[0] for other in others)} compared with 1", alike(setting, config, others)))
    for name in ("mlp", "gpt2", "resnet18"):
        steps = setting.num_steps(name, few=3)
        config = config_of(name, steps, slices=4, deterministic=True)
        cases.append((f"{name}, {steps} steps, 4 slices: 4 workers compared with 1", equal(setting, config)))
    sync = config_of("resnet18", FIRST_STEPS, optimizer=PLAIN)
    sync["model"] = {key: value for key, value in sync["model"].items() if key != "ghostBatch"} | {"batchNorm": "Sync"}
    cases.append((f"resnet18, {FIRST_STEPS} steps, batchNorm Sync: 2 workers compared with 1", alike(setting, sync, [("2 workers", 2, None)])))
    return setting.each(cases)


def alike(setting, config, others):
    """Trains with one worker and in other ways, and compares losses and weights."""

    most = tolerances(setting).get(config["model"]["name"], (TOLERANCE, TOLERANCE))

    def tried():
        one, differences = trained(setting, config, 1), []
        for what, nodes, here in others:
            other = trained(setting, config, nodes, here)
            loss, weights = losses_apart(other.losses, one.losses), apart(other.weights, one.weights)
            assert loss <= most[0] and weights <= most[1], f"{what}: losses differ by {loss:.1e}, weights by {weights:.1e}"
            differences.append(f"losses {loss:.0e}, weights {weights:.0e}")
        return "; ".join(differences)

    return tried


def equal(setting, config):
    """Trains with one worker and with four, and checks that the results are equal bit for bit."""

    def tried():
        one, four = trained(setting, config, 1), trained(setting, config, 4)
        return same_bits(four, one)

    return tried


def waits(setting):
    """No call in a step makes the host wait for the GPU. libtorch refuses such calls from the
    second step of a generation."""
    here = dataclasses.replace(setting.here, extra={"ROUNDHOUSE_HOST_SYNCS": "refuse"})

    def case(name, nodes):
        def tried():
            trained(setting, config_of(name, setting.num_steps(name)), nodes, here)
            return "a CPU's host never waits" if setting.here.device == "cpu" else "none"

        return f"calls that make the host wait in a step: {name}, {nodes} workers", tried

    worlds = [("mlp", 1), ("mlp", 2), ("gpt2", 1), ("gpt2", 2), ("bert", 1), ("bert", 2), ("resnet18", 1)]
    return setting.each([case(name, nodes) for name, nodes in worlds])


def switches(setting):
    """Each setting of the step has its effect with two workers, compared with a training without
    it."""
    plain = {}

    def steps_of(model):
        # For a model with its own tolerances, later steps would only show how rounding grows.
        return FIRST_STEPS if model in tolerances(setting) else STEPS_OF_A_SWITCH

    for model in sorted({MODEL_OF_SWITCH.get(name, "mlp") for name in SWITCHES}):
        plain[model] = trained(setting, config_of(model, steps_of(model), optimizer=PLAIN), 2)

    def case(name, kind, extra):
        model = MODEL_OF_SWITCH.get(name, "mlp")
        steps = steps_of(model)

        def tried():
            found = trained(setting, config_of(model, steps, **{"optimizer": PLAIN, **extra}), 2)
            difference = apart(found.weights, plain[model].weights)
            seen = kind in ("rounds", "other") or (kind == "rounds on GPUs" and setting.here.device == "cuda")
            assert not seen or difference > 0, "the setting has no effect: the weights are equal bit for bit"
            assert kind == "other" or difference <= MOST_OF_A_SWITCH, f"the weights differ by {difference:.1e}"
            if kind == "sums":
                loss, most = losses_apart(found.losses, plain[model].losses), tolerances(setting).get(model, (MOST_OF_A_SWITCH,))[0]
                assert loss <= most, f"the losses differ by {loss:.1e}"
            assert math.isfinite(difference), "weights are not finite"
            return f"weights differ by {difference:.0e}"

        return f"{name}: {model}, 2 workers, {steps} steps compared with those without it", tried

    return setting.each([case(name, kind, extra) for name, (kind, extra) in SWITCHES.items()])


def reforms(setting):
    """Forms a hundred generations, and checks that threads, descriptors and memory do not grow."""
    generations = 20 if setting.is_small() else 100
    early = generations // 4

    def counts(world):
        found = {}
        for node in (0, 1):
            process = pathlib.Path("/proc") / str(world.processes[node].pid)
            found[f"descriptors of worker {node}"] = len(list((process / "fd").iterdir()))
            found[f"threads of worker {node}"] = len(list((process / "task").iterdir()))
            resident_pages = int((process / "statm").read_text().split()[1])
            found[f"host memory of worker {node}, MiB"] = resident_pages * os.sysconf("SC_PAGE_SIZE") // 2**20
            memory = world.metric(node, "device_memory_reserved_bytes")
            if memory is not None:
                found[f"GPU memory of worker {node}, MiB"] = round(memory / 2**20)
        if not setting.is_small():
            # This includes the memory of NCCL, which the trainer's allocator does not count.
            found["memory in use of the GPU, MiB"] = machine.memory_in_use()
        return found

    with setting.world(config_of("mlp", 100_000_000), 2) as world:
        world.prepared(range(2))
        spans, first = [], None
        for generation in range(1, generations + 1):
            started = time.monotonic()
            world.issue(generation, [0, 1] if generation % 2 else [1, 0])
            world.until(
                f"generation {generation}",
                lambda: all(world.status(node)["generation"] == generation for node in (0, 1)) and world.status(0)["phase"] == "Training",
            )
            spans.append(time.monotonic() - started)
            if generation == early:
                time.sleep(1)
                first = counts(world)
        time.sleep(1)
        last = counts(world)
        setting.audit(world)
        transports = world.labels(0, "nccl_transport", "transport")
        assert transports or setting.here.device == "cpu", "the metric nccl_transport is missing"
    rows = [(f"{generations} generations: median from the file to training", f"{statistics.median(spans):.2f} s")]
    rows.append(("transport of 2 workers on one GPU", ", ".join(transports) or "Gloo"))
    for name, before in first.items():
        rows.append((f"{name} after {early} and after {generations} generations", f"{before}, {last[name]}"))
        assert last[name] <= before + max(8, before // 10), f"{name} grow from {before} to {last[name]}"
    return rows


def throughput(setting):
    """Compares the speed with PyTorch eager on this machine, in alternating runs."""
    rows, seconds = [], 4 if setting.is_small() else 10
    for case in speed.cases(setting.is_small()):
        data = setting.place / f"speed-{case.name.replace(' ', '-')}"
        config, per_step = speed.write(case, data, setting.is_small()), case.per_step
        mine, theirs = [], []
        for _ in range(setting.rounds):
            with setting.world(config, 1, data=data) as world:
                mine.append(per_step * ours.rate(world, 1, seconds))
            peer = [sys.executable, speed.PEER, "--model", case.model, "--device", setting.here.device, "--seconds", str(seconds)]
            if not setting.is_small():
                peer += ["--precision", "bf16"]
            found = subprocess.run(peer, capture_output=True, text=True, timeout=600)
            assert found.returncode == 0, found.stderr[-1500:]
            theirs.append(per_step * float(found.stdout.split()[0]))
        own, other = statistics.median(mine), statistics.median(theirs)
        assert math.isfinite(own)
        rows.append((f"{case.name}, {case.unit}: ours, PyTorch eager, ratio", f"{own:,.0f}, {other:,.0f}, {own / other:.2f}"))
        setting.note(*rows[-1])
    return rows


ALL = {
    # First the part on which the others rely, then the part that needs no NCCL, then the others by
    # their duration.
    "smoke": smoke, "speed": throughput, "waits": waits, "worlds": worlds, "switches": switches, "points": faults.points,
    "histories": faults.histories, "kills": faults.kills, "reforms": reforms,
}
