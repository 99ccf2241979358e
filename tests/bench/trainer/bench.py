"""Compares the trainer's steps per second with PyTorch's, in alternating runs on this machine;
prints a table.

Both train the same shapes with the same batch, optimizer and number of threads, from synthetic
samples. The trainer runs with agreement, checksum, ledger and metrics at every step, and, for
comparison, without them.
"""
import argparse
import pathlib
import statistics
import sys
import tempfile
import time

import ours
import pictures
from ports import free_port
from world import output_of_rank_0

HERE = pathlib.Path(__file__).parent
GOALS = {"mlp": 1.3, "resnet18": 1.0, "gpt2": 1.0}


def peer(python, name, world, seconds, shard="none", save_every=None):
    """PyTorch's median steps per second, and the peak memory of the largest process in MiB."""
    command = [python, HERE / "peer.py", "--model", name, "--world", str(world), "--port", str(free_port())]
    command += ["--seconds", str(seconds), "--parallel", shard]
    command += ["--save-every", str(save_every)] if save_every else []
    ranks = [[*command, "--rank", str(rank)] for rank in range(world)]
    return tuple(map(float, output_of_rank_0(ranks, [{}] * world).split()))


def copied(num_bytes):
    """The seconds that this machine needs to copy a number of bytes."""
    source, target = bytearray(num_bytes), bytearray(num_bytes)
    # Writes to each page once, because the kernel allocates a page at the first write.
    source[::4096] = target[::4096] = b"x" * len(range(0, num_bytes, 4096))
    spans = []
    for _ in range(5):
        began = time.perf_counter()
        target[:] = source
        spans.append(time.perf_counter() - began)
    return statistics.median(spans)


def table_of_steps(rows):
    print("| model | W | ours, steps/s | PyTorch, steps/s | ratio | goal | not elastic, steps/s | overhead | 4 slices, steps/s | overhead of slices |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, world, mine, theirs, slices, bare in rows:
        ratio, overhead = mine / theirs, 100 * (1 - mine / bare)
        print(f"| {name} | {world} | {mine:.2f} | {theirs:.2f} | {ratio:.2f} | {GOALS[name]} ", end="")
        print(f"| {bare:.2f} | {overhead:.1f} % | {slices:.2f} | {100 * (1 - slices / mine):.0f} % |")
    print("Overhead: the part of a step that agreement, checksum, ledger and metrics take. Goal: at most 2 % of steps of 5 ms or more.")
    print("Overhead of slices: by how much a sum that is equal for any number of ranks reduces the steps/s.", flush=True)


def steps(options, data):
    """The medians of steps per second, for each model and number of ranks."""
    rows = []
    for name in filter(None, options.models.split(",")):
        for world in (1, 2):
            mine, theirs, slices, bare = [], [], [], []
            for number in range(options.rounds):
                print(f"{name}, {world} ranks, round {number + 1} of {options.rounds}", file=sys.stderr)
                mine.append(ours.measure(options.trainer, data, name, world, options.seconds))
                bare.append(ours.bare(options.bare, data, name, world, mine[-1] * options.seconds))
                theirs.append(peer(options.python, name, world, options.seconds)[0])
                slices.append(ours.measure(options.trainer, data, name, world, options.seconds, {"slices": 4}))
                found = f"{mine[-1]:.2f}, not elastic {bare[-1]:.2f}, PyTorch {theirs[-1]:.2f}, slices {slices[-1]:.2f}"
                print(f"  steps/s: {found}", file=sys.stderr)
            rows.append((name, world, *map(statistics.median, (mine, theirs, slices, bare))))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainer", required=True, help="the program roundhouse-train, optimized")
    parser.add_argument("--bare", required=True, help="the example program bare, optimized")
    parser.add_argument("--python", required=True, help="an interpreter with PyTorch")
    parser.add_argument("--models", default="mlp,resnet18,gpt2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10, help="duration of each measurement")
    parser.add_argument("--decoder", help="the example program bench of roundhouse-data, optimized; without it no images are measured")
    parser.add_argument("--checkpoints", type=int, default=4, help="the number of measured checkpoints; 0: none")
    options = parser.parse_args()
    # Each part prints its results at its end, because a later part may fail.
    with tempfile.TemporaryDirectory() as place:
        data = pathlib.Path(place)
        ours.write_data(data)
        table_of_steps(steps(options, data))
        print("samples from WebDataset", file=sys.stderr)
        waits = ours.data_wait(options.trainer, data, options.seconds)
        print(f"\nresnet18 from WebDataset waits {100 * waits:.1f} % of the time for samples. Goal: less than 2 %.", flush=True)
        if options.decoder:
            print("JPEG images", file=sys.stderr)
            images = pictures.measure(options.decoder, options.python, data / "jpeg", options.rounds)
            print("\nJPEG images of 400x300, cut to 224, flipped and normalized, images/s of one core:")
            print("| ours | torchvision and DataLoader | ratio | goal | ours as bytes, normalized on the device |")
            print("|---|---|---|---|---|")
            ratio = images.floats / images.peer
            print(f"| {images.floats:.0f} | {images.peer:.0f} | {ratio:.2f} | 1.2 | {images.bytes:.0f} |", flush=True)
        if options.checkpoints:
            print("checkpoints", file=sys.stderr)
            stalls, num_bytes = ours.stalls(options.trainer, data, options.checkpoints)
            stall, copy = (1000 * span for span in (statistics.median(stalls), copied(int(num_bytes))))
            print(f"\nA checkpoint of {num_bytes / 1e6:.0f} MB: training pauses for {stall:.0f} ms; ", end="")
            print(f"this machine copies as many bytes in {copy:.0f} ms. Goal: at most 50 ms more.")


if __name__ == "__main__":
    main()
