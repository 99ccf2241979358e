"""Measures what local copies cost: steps per second without them, with one every ten steps, and
with one after every step, in alternating runs on this machine; prints a table.

The copies are in memory (/dev/shm), as with `medium: Memory`. PyTorch saves its checkpoints there,
too, with torch.distributed.checkpoint.async_save.
"""
import argparse
import pathlib
import statistics
import sys
import tempfile

import ours
from bench import peer
from ours import CONFIGURATIONS, THREADS, rate
from world import World

INTERVALS = (None, 10, 1)
MEMORY = "/dev/shm"


def measure(trainer, data, name, seconds, every):
    """The median steps per second of one process, and the last pause of training in ms."""
    config = CONFIGURATIONS[name] | {"steps": 1_000_000_000, "seed": 7}
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory(dir=MEMORY) as copies:
        variables = THREADS
        if every:
            variables = THREADS | {
                "ROUNDHOUSE_CHECKPOINT_LOCAL_DIR": copies,
                "ROUNDHOUSE_CHECKPOINT_LOCAL_EVERY_STEPS": str(every),
            }
        with World(trainer, place, data, config, 1, lambda _: variables) as workers:
            found = rate(workers, 1, seconds)
            pause = workers.metric(0, "local_copy_stall_seconds") or 0
            skipped = workers.metric(0, "local_copies_skipped_total") or 0
            return found, 1000 * pause, skipped


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainer", required=True, help="the program roundhouse-train, optimized")
    parser.add_argument("--python", required=True, help="an interpreter with PyTorch")
    parser.add_argument("--models", default="gpt2,gpt2-wide")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10, help="duration of each measurement")
    options = parser.parse_args()
    print("| model | copies | ours, steps/s | price | pause, ms | skipped | PyTorch, steps/s | price |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as place:
        data = pathlib.Path(place)
        ours.write_data(data)
        for name in options.models.split(","):
            mine, theirs = {}, {}
            for number in range(options.rounds):
                print(f"{name}, round {number + 1} of {options.rounds}", file=sys.stderr)
                for every in INTERVALS:
                    mine.setdefault(every, []).append(measure(options.trainer, data, name, options.seconds, every))
                    found, _ = peer(options.python, name, 1, options.seconds, save_every=every)
                    theirs.setdefault(every, []).append(found)
            for every in INTERVALS:
                print_row(name, every, mine, theirs)


def print_row(name, every, mine, theirs):
    ours_now, pause, skipped = map(statistics.median, zip(*mine[every]))
    ours_before = statistics.median(found for found, _, _ in mine[None])
    peer_now, peer_before = statistics.median(theirs[every]), statistics.median(theirs[None])
    prices = [f"{100 * (1 - now / before):.1f} %" for now, before in ((ours_now, ours_before), (peer_now, peer_before))]
    when = f"every {every} steps" if every else "none"
    print(f"| {name} | {when} | {ours_now:.2f} | {prices[0]} | {pause:.1f} | {skipped:.0f} | {peer_now:.2f} | {prices[1]} |", flush=True)


if __name__ == "__main__":
    main()
