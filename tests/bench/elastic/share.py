"""Measures how long a worker takes to join a job with a large state, over links of a limited rate;
prints a Markdown table.

Each worker has its own network namespace, which a veth pair of that rate connects to a bridge. This
needs root. The benchmark measures the package in PYTHONPATH.
"""

import argparse
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time

TESTS = pathlib.Path(__file__).parents[3] / "trainer-image/python/tests"
sys.path.insert(0, str(TESTS))

import world as harness  # noqa: E402

BRIDGE = "rh-share"
PORT = 25300
# The size of the link's token bucket: the bytes of 10 ms at 1 Gbit/s.
BURST = "1280kb"


def run(*words, check=True):
    return subprocess.run(words, check=check, capture_output=True, text=True).stdout


def name(index):
    return f"{BRIDGE}-{index}"


def address(index):
    return f"10.213.77.{index + 1}"


@contextlib.contextmanager
def links(number, rate):
    """Creates a network namespace for each worker, with a link that is limited to the rate in both
    directions."""
    try:
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "link", "set", BRIDGE, "up")
        for index in range(number):
            near, space = f"{BRIDGE}{index}", name(index)
            run("ip", "netns", "add", space)
            run("ip", "link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", space)
            run("ip", "link", "set", near, "master", BRIDGE, "up")
            inside = ("ip", "netns", "exec", space)
            run(*inside, "ip", "address", "add", f"{address(index)}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                run(*inside, "ip", "link", "set", link, "up")
            limit = ("root", "tbf", "rate", rate, "burst", BURST, "latency", "50ms")
            run("tc", "qdisc", "add", "dev", near, *limit)
            run(*inside, "tc", "qdisc", "add", "dev", "eth0", *limit)
        yield
    finally:
        for index in range(number):
            run("ip", "netns", "delete", name(index), check=False)
        run("ip", "link", "delete", BRIDGE, check=False)


class Worker(harness.Worker):
    """A worker in its network namespace."""

    def __init__(self, world, index, variables):
        command = world.command
        world.command = ["ip", "netns", "exec", name(index), *command]
        own = {"ROUNDHOUSE_POD_IP": address(index), "ROUNDHOUSE_RENDEZVOUS_PORT": str(PORT)}
        super().__init__(world, index, {**variables, **own})
        world.command = command
        self.address, self.port = address(index), PORT

    def moved(self):
        """The bytes that its link has sent and received."""
        counters = "cat /sys/class/net/eth0/statistics/tx_bytes /sys/class/net/eth0/statistics/rx_bytes"
        return [int(each) for each in run("ip", "netns", "exec", name(self.index), "sh", "-c", counters).split()]


def measure(size, mib):
    """The seconds in which the last worker joins the others, and the bytes on each link meanwhile,
    in units of the state."""
    with tempfile.TemporaryDirectory() as directory:
        variables = {"LARGE": str(mib)}
        arguments = (directory, "train.py", 10_000_000, pathlib.Path(directory) / "weights")
        with harness.World(*arguments, variables=variables) as world:
            workers = [Worker(world, index, {}) for index in range(size)]
            world.all.extend(workers)
            world.prepared(workers)
            world.form(workers[:-1], others_leave=False)
            world.reach(workers[:-1], 5)
            before = [worker.moved() for worker in workers]
            started = time.monotonic()
            world.form(workers)
            at = max(world.step(worker) for worker in workers[:-1])
            world.reach(workers, at + 1)
            took = time.monotonic() - started
            after = [worker.moved() for worker in workers]
    state = mib << 20
    moved = [[(b - a) / state for a, b in zip(one, other)] for one, other in zip(before, after)]
    return took, moved


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rate", default="1gbit")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("network namespaces need root")
    print(f"state of {arguments.mib} MiB, links of {arguments.rate}\n")
    print("| W | a worker joins | sent and received by each link, in states |")
    print("|---|---|---|", flush=True)
    for size in arguments.workers:
        with links(size, arguments.rate):
            took, moved = measure(size, arguments.mib)
        each = ", ".join(f"{sent:.2f} and {received:.2f}" for sent, received in moved)
        print(f"| {size - 1} → {size} | {took:.1f} s | {each} |", flush=True)


if __name__ == "__main__":
    main()
