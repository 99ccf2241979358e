"""Compares steps per second and memory of two processes that divide an optimizer, gradients or a
model among themselves, in alternating runs on this machine; prints a table.

The trainer's processes are two workers without `trainer.parallel`, or one worker of two processes
with it. PyTorch's have DistributedDataParallel, the same with ZeroRedundancyOptimizer, FSDP2, or
tensor parallelism by parallelize_module in the blocks, or a pipeline by Schedule1F1B.
"""
import argparse
import pathlib
import statistics
import sys
import tempfile

import ours
from bench import peer
from ours import THREADS
from world import World

PARALLEL = {
    "Zero1": {"shard": "Zero1"},
    "Zero2": {"shard": "Zero2"},
    "Zero3": {"shard": "Zero3"},
    "tensor": {"tensor": 2},
    "pipeline": {"pipeline": 2},
}
PEERS = {"DDP": "none", "DDP, ZeroRedundancyOptimizer": "zero1", "FSDP2": "fsdp", "parallelize_module": "tensor", "Schedule1F1B": "pipeline"}
# PyTorch has no layer with experts.
OF_EXPERTS = {"Zero3": PARALLEL["Zero3"], "Zero3, expert": {"shard": "Zero3", "expert": 2}}


class Replica(World):
    """One worker of two processes. Its nodes are the processes."""

    procs_per_worker = 2

    def __init__(self, trainer, directory, data, config):
        directory = pathlib.Path(directory)

        def shared(rank):
            return THREADS | {
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": "2",
                "ROUNDHOUSE_SHARDED": "true",
                "ROUNDHOUSE_REPLICA_FILE": str(directory / "replica"),
                "ROUNDHOUSE_RENDEZVOUS_PORT": str(self.ports[0]),
                "ROUNDHOUSE_MEMBERSHIP_FILE": str(directory / "membership-0"),
                "ROUNDHOUSE_RUN_DIR": str(directory / "run-0"),
            }

        super().__init__(trainer, directory, data, config, 2, shared)

    def status_file(self, node):
        return self.directory / "run-0" / f"rank-{node}.json"

    def issue(self, generation, nodes):
        super().issue(generation, [0])


def peak_of(process):
    """The peak of the resident memory of a process in MiB."""
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def mine(options, data, name, parallel=None):
    """Steps per second of the trainer, and the peak memory of the larger process."""
    config = ours.CONFIGURATIONS[name] | {"steps": 1_000_000_000, "seed": 7}
    with tempfile.TemporaryDirectory() as place:
        if parallel and "pipeline" in parallel:
            # Four passes per step, as in PyTorch.
            config["microBatchSize"] = 2
        if parallel:
            world = Replica(options.trainer, place, data, config | {"parallel": parallel})
        else:
            world = World(options.trainer, place, data, config, 2, lambda _: THREADS)
        with world as workers:
            rate = ours.rate(workers, 2, options.seconds)
            return rate, max(map(peak_of, workers.processes))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainer", required=True, help="the program roundhouse-train, optimized")
    parser.add_argument("--python", required=True, help="an interpreter with PyTorch")
    parser.add_argument("--models", default="gpt2,gpt2-wide,switch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10, help="duration of each measurement")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        data = pathlib.Path(place)
        ours.write_data(data)
        print("| model | side | steps/s | relative to no shards | peak memory of the larger process |\n|---|---|---|---|---|", flush=True)
        for name in options.models.split(","):
            parallel, peers = (OF_EXPERTS, {}) if name == "switch" else (PARALLEL, PEERS)
            found = {side: [] for side in ["no shards", *parallel, *peers]}
            for number in range(options.rounds):
                print(f"{name}, round {number + 1} of {options.rounds}", file=sys.stderr)
                found["no shards"].append(mine(options, data, name))
                for side, setting in parallel.items():
                    found[side].append(mine(options, data, name, setting))
                for side, shard in peers.items():
                    found[side].append(peer(options.python, name, 2, options.seconds, shard))
            rates = {side: statistics.median(rate for rate, _ in runs) for side, runs in found.items()}
            for side, runs in found.items():
                memory = statistics.median(memory for _, memory in runs)
                ratio = rates[side] / rates["no shards"]
                print(f"| {name} | {side} | {rates[side]:.2f} | {ratio:.2f} | {memory:.0f} MiB |", flush=True)


if __name__ == "__main__":
    main()
