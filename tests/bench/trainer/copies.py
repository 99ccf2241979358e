"""Measures what local copies cost: steps per second without them, with one every ten steps, and
with one after every step, in alternating runs on this machine; prints a table.

The copies are in memory (/dev/shm), as with `medium: Memory`. PyTorch saves its checkpoints there,
too, with torch.distributed.checkpoint.async_save. A second process, the spare of the job, also
holds the copies (`peerCopies: 1`). With --pods, two processes with Zero3 are the pods of a replica,
alone and with copies in each other's pod. PyTorch is not measured then: it keeps no copies in other
processes.
"""
import argparse
import json
import os
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


class Pods(World):
    """One replica of two pods, each with a process and a loopback address of its own."""

    life = "life"

    def __init__(self, trainer, directory, data, config, variables, hold_copies):
        addresses = [f"127.78.{os.getpid() % 250}.{pod + 1}" for pod in range(2)]

        def of_pod(pod):
            return variables(pod) | {
                "ROUNDHOUSE_SHARDED": "true",
                "ROUNDHOUSE_REPLICA_FILE": str(pathlib.Path(directory) / f"run-{pod}" / "store"),
                "ROUNDHOUSE_REPLICA_LIFE": self.life,
                "ROUNDHOUSE_REPLICA_POD": str(pod),
                "ROUNDHOUSE_REPLICA_ADDRESSES": ",".join(addresses),
                "ROUNDHOUSE_REPLICA_HOLDERS": "1,0" if hold_copies else "",
                "ROUNDHOUSE_REPLICA_STORE_PORT": "29564",
            }

        super().__init__(trainer, directory, data, config | {"parallel": {"shard": "Zero3"}}, 2, of_pod)


class WithSpare(World):
    """A worker of one process, and a spare that holds second copies."""

    def __init__(self, trainer, directory, data, config, variables):
        addresses = [f"127.79.{os.getpid() % 250}.{pod + 1}" for pod in range(2)]
        directory = pathlib.Path(directory)
        for pod, role in enumerate(("Worker", "Holder")):
            pair = {"id": "pair", "role": role, "peer": f"pod-{1 - pod}", "address": addresses[1 - pod]}
            (directory / f"pair-{pod}").write_text(json.dumps(pair))

        def of_pod(pod):
            return variables(pod) | {
                "ROUNDHOUSE_POD_IP": addresses[pod],
                "ROUNDHOUSE_CHECKPOINT_LOCAL_PAIR_FILE": str(directory / f"pair-{pod}"),
            }

        super().__init__(trainer, directory, data, config, 2, of_pod)


def measure(options, data, name, every, hold_copies=False):
    """The median steps per second, and the last pause of training in ms."""
    config = CONFIGURATIONS[name] | {"steps": 1_000_000_000, "seed": 7}
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory(dir=MEMORY) as copies:

        def variables(node):
            if not every:
                return THREADS
            return THREADS | {
                "ROUNDHOUSE_CHECKPOINT_LOCAL_DIR": f"{copies}/{node}",
                "ROUNDHOUSE_CHECKPOINT_LOCAL_EVERY_STEPS": str(every),
            }

        if options.pods:
            world = Pods(options.trainer, place, data, config, variables, hold_copies)
        elif hold_copies:
            world = WithSpare(options.trainer, place, data, config, variables)
        else:
            world = World(options.trainer, place, data, config, 1, variables)
        with world as workers:
            workers.prepared(range(len(workers.processes)))
            found = rate(workers, 2 if options.pods else 1, options.seconds)
            if hold_copies and not options.pods and not workers.metric(0, "second_copy_step"):
                raise RuntimeError(f"the spare has no copy\n{workers.logs()}")
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
    parser.add_argument("--pods", action="store_true", help="measure a replica of two pods that hold copies for each other")
    options = parser.parse_args()
    print("| model | copies | ours, steps/s | price | pause, ms | skipped | PyTorch, steps/s | price |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    # When copies are made, and whether another pod holds them, too.
    sides = [(every, False) for every in INTERVALS]
    sides += [(every, True) for every in INTERVALS[1:]]
    with tempfile.TemporaryDirectory() as place:
        data = pathlib.Path(place)
        ours.write_data(data)
        for name in options.models.split(","):
            mine, theirs = {}, {}
            for number in range(options.rounds):
                print(f"{name}, round {number + 1} of {options.rounds}", file=sys.stderr)
                for side in sides:
                    mine.setdefault(side, []).append(measure(options, data, name, *side))
                for every in () if options.pods else INTERVALS:
                    found, _ = peer(options.python, name, 1, options.seconds, save_every=every)
                    theirs.setdefault(every, []).append(found)
            for side in sides:
                print_row(options, name, side, mine, theirs)


def print_row(options, name, side, mine, theirs):
    every, hold_copies = side
    ours_now, pause, skipped = map(statistics.median, zip(*mine[side]))
    ours_before = statistics.median(found for found, _, _ in mine[None, False])
    when = f"every {every} steps" if every else "none"
    second = ", in both pods" if options.pods else ", in a spare, too"
    where = second if hold_copies else ""
    has_peer = theirs and not hold_copies
    of_peer = f"{statistics.median(theirs[every]):.2f} | {price(theirs[every], theirs[None])}" if has_peer else "- | -"
    mine_now = f"{ours_now:.2f} | {price([ours_now], [ours_before])} | {pause:.1f} | {skipped:.0f}"
    print(f"| {name} | {when}{where} | {mine_now} | {of_peer} |", flush=True)


def price(now, before):
    return f"{100 * (1 - statistics.median(now) / statistics.median(before)):.1f} %"


if __name__ == "__main__":
    main()
