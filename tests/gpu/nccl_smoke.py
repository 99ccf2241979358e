#!/usr/bin/env python3
"""NCCL with several processes on one GPU, without Roundhouse, in about a minute: the basis of everything else.

usage: tests/gpu/nccl_smoke.py --out DIR [--ranks 3] [--backend nccl|gloo] [--only CASE,...]

Each case runs in processes of its own and has a deadline; a case that hangs is killed, and the next one begins. Each result is
printed and written to DIR/smoke.txt as soon as it is known. NCCL's logs are in DIR/CASE-RANK.log, errors in DIR/CASE-RANK.err.
`--backend gloo` runs on CPUs and shows that this program is right; cases about errors and aborts are left out there.
"""
import argparse
import datetime
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import machine

# A bundle has the settings beside `tests`.
BUNDLE = HERE.parent.parent
# Deadline in seconds, and whether the case needs NCCL.
CASES = {
    "connect": (25, False), "blocking": (25, True), "speed": (30, False), "sends": (20, True),
    "all_to_all": (20, True), "equal_split": (20, True),
    "reform": (40, False), "killed": (40, True), "full_queue": (40, True),
}
# Cases in which rank 1 kills itself, in the sum of this number.
KILLING, VICTIM, AT = ("killed", "full_queue"), 1, 30
LONGEST_WORDS = 300


class Rank:
    """One process of a case. What it finds is in `found`."""

    def __init__(self, options):
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.options = torch, dist, options
        self.device = "cuda" if options.backend == "nccl" else "cpu"
        if self.device == "cuda":
            torch.cuda.set_device(0)
            torch.zeros(1, device="cuda")
        self.root = dist.TCPStore("127.0.0.1", options.port, is_master=False, wait_for_workers=False)
        self.found = {}

    def group(self, name, rank, size, blocking=0, seconds=20):
        store = self.dist.PrefixStore(name, self.root)
        timeout = datetime.timedelta(seconds=seconds)
        if self.device == "cpu":
            options = self.dist.ProcessGroupGloo._Options()
            options._timeout = timeout
            options._devices = [self.dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
            return self.dist.ProcessGroupGloo(store, rank, size, options)
        options = self.dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        options.config.blocking = blocking
        group = self.dist.ProcessGroupNCCL(store, rank, size, options)
        group.allreduce([self.torch.zeros(1, device="cuda")]).wait()
        self.wait_for_device()
        return group

    def wait_for_device(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def group_of_all(self, **more):
        began = time.monotonic()
        group = self.group(self.options.case, self.options.rank, self.options.ranks, **more)
        self.found["connect_s"] = round(time.monotonic() - began, 2)
        return group

    def check_sum(self, group, size):
        ones = self.torch.ones(1000, device=self.device)
        group.allreduce([ones]).wait()
        self.wait_for_device()
        assert float(ones.min()) == float(ones.max()) == size, (float(ones.min()), float(ones.max()))

    def launch_microseconds(self, group, calls=50):
        """Host time of one call of all-reduce."""
        small = self.torch.zeros(256, device=self.device)
        for _ in range(5):
            group.allreduce([small]).wait()
        self.wait_for_device()
        began = time.perf_counter()
        for _ in range(calls):
            group.allreduce([small]).wait()
        spent = time.perf_counter() - began
        self.wait_for_device()
        return round(spent / calls * 1e6)

    # The cases.

    def connect(self):
        self.check_sum(self.group_of_all(), self.options.ranks)

    def blocking(self):
        """With a communicator whose calls block: if `connect` fails and this does not, the mode is the cause."""
        group = self.group_of_all(blocking=1)
        self.check_sum(group, self.options.ranks)
        self.found["launch_us"] = self.launch_microseconds(group)

    def speed(self):
        group = self.group_of_all()
        self.found["launch_us"] = self.launch_microseconds(group)
        for name, numel, times in (("small_ms", 256, 30), ("25MiB_ms", 25 << 18, 6)):
            tensor, spans = self.torch.zeros(numel, device=self.device), []
            for _ in range(times):
                began = time.perf_counter()
                group.allreduce([tensor]).wait()
                self.wait_for_device()
                spans.append((time.perf_counter() - began) * 1e3)
            self.found[name] = round(statistics.median(spans), 2)

    def sends(self):
        """Parts that ranks send to each other as one launch, as the trainer's `slices` do."""
        group, size, own = self.group_of_all(), self.options.ranks, self.options.rank
        mine = self.torch.full((size, 2), float(own), device=self.device)
        out = mine.clone()
        group._start_coalescing()
        for peer in range(size):
            if peer != own:
                group.send([mine[peer]], peer, 0)
                group.recv([out[peer]], peer, 0)
        group._end_coalescing().wait()
        self.wait_for_device()
        assert out.tolist() == [[float(rank)] * 2 for rank in range(size)], out.tolist()

    def all_to_all(self):
        """With the lengths of the parts. PyTorch 2.11 looks for errors meanwhile without the lock of the communicator."""
        self.exchange([2] * self.options.ranks)

    def equal_split(self):
        """Without lengths PyTorch 2.11 calls ncclAlltoAll and takes ncclInProgress for an error: "NCCL Error 7" is expected."""
        self.exchange([])

    def exchange(self, lengths):
        group, size = self.group_of_all(), self.options.ranks
        mine = self.torch.full((2 * size,), float(self.options.rank), device=self.device)
        out = self.torch.empty_like(mine)
        group.alltoall_base(out, mine, lengths, lengths, self.dist.AllToAllOptions()).wait()
        self.wait_for_device()
        assert out.tolist() == [float(rank) for rank in range(size) for _ in range(2)], out.tolist()

    def reform(self):
        """Ten groups one after the other, each shut down when the next one is connected: what do they leave behind?"""
        size, before, spans, early = self.options.ranks, None, [], None
        for number in range(10):
            began = time.monotonic()
            group = self.group(f"reform-{number}", (self.options.rank + number) % size, size)
            spans.append(time.monotonic() - began)
            self.check_sum(group, size)
            if before is not None and self.device == "cuda":
                before.shutdown()
            before = group
            if number == 1:
                early = self.footprint()
        self.found |= {"median_s": round(statistics.median(spans[1:]), 2), "after_2": early, "after_10": self.footprint()}

    def footprint(self):
        found = {"threads": len(os.listdir("/proc/self/task")), "fds": len(os.listdir("/proc/self/fd"))}
        if self.device == "cuda":
            free, total = self.torch.cuda.mem_get_info()
            found["gpu_used_mib_all_processes"] = (total - free) >> 20
        return found

    def killed(self, launches=0):
        """A rank is killed in a sum. When does PyTorch notice, and how long do the abort and the next group take?"""
        group, rank, size, torch = self.group_of_all(), self.options.rank, self.options.ranks, self.torch
        died_at = []
        watch = threading.Thread(target=self.interrupt, args=(group, died_at))
        watch.start()
        busy = torch.zeros(1 << 20, device="cuda")
        try:
            for number in range(2 * AT):
                if number == AT:
                    if rank == VICTIM:
                        os.kill(os.getpid(), signal.SIGKILL)
                    died_at.append(time.monotonic())
                group.allreduce([torch.ones(1000, device="cuda")]).wait()
                for _ in range(launches if number == AT else 0):
                    # More launches than the queue of a stream holds: the host blocks in one of them.
                    busy.add_(1)
                self.wait_for_device()
        except Exception as error:
            self.found["error"] = f"{type(error).__name__}: {error}"[:LONGEST_WORDS]
        self.found["free_again_s"] = round(time.monotonic() - died_at[0], 2)
        watch.join()
        began = time.monotonic()
        left = [other for other in range(size) if other != VICTIM]
        self.check_sum(self.group("after", left.index(rank), len(left)), len(left))
        self.found["next_group_s"] = round(time.monotonic() - began, 2)
        began = time.monotonic()
        del group
        self.found["free_s"] = round(time.monotonic() - began, 2)

    def interrupt(self, group, died_at):
        """Waits until PyTorch sees the error, for six seconds at most, and aborts the group."""
        while not died_at:
            time.sleep(0.01)
        while time.monotonic() < died_at[0] + 6 and group.get_error().name == "SUCCESS":
            time.sleep(0.02)
        self.found["get_error"] = f"{group.get_error().name} after {time.monotonic() - died_at[0]:.2f} s"
        began = time.monotonic()
        try:
            group.abort()
            self.found["abort_s"] = round(time.monotonic() - began, 2)
        except Exception as error:
            self.found["abort"] = f"{type(error).__name__}: {error}"[:LONGEST_WORDS]

    def full_queue(self):
        self.killed(launches=5000)

    def run(self):
        getattr(self, self.options.case)()
        print(json.dumps(self.found), flush=True)
        # Not the ordinary exit: its destructors wait for peers.
        os._exit(0)


def variables(case, rank, out, settings):
    """Of one process: a host of its own, because two ranks of one host must not share a GPU."""
    return settings | {
        "NCCL_HOSTID": f"worker-{rank}", "OMP_NUM_THREADS": "1", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV",
        "NCCL_DEBUG_FILE": str(out / f"{case}-{rank}.log"),
        # What is to be aborted is not to be waited for long.
        "TORCH_NCCL_NONBLOCKING_TIMEOUT": "20",
    }


def start(case, rank, port, options, settings):
    command = [
        sys.executable, __file__, "--case", case, "--rank", str(rank), "--ranks", str(options.ranks), "--port", str(port),
        "--backend", options.backend,
    ]
    with (options.out / f"{case}-{rank}.err").open("w") as errors:
        own = variables(case, rank, options.out, settings)
        return subprocess.Popen(command, env=os.environ | own, stdout=subprocess.PIPE, stderr=errors, text=True)


def result(case, rank, process, seconds, options):
    """What a process of a case found, in words; None for the one that was to be killed."""
    try:
        found, _ = process.communicate(timeout=max(0.1, seconds))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return "HANGS, and was killed at the deadline"
    if process.returncode == -signal.SIGKILL and case in KILLING and rank == VICTIM:
        return None
    if process.returncode:
        errors = (options.out / f"{case}-{rank}.err").read_text().strip().splitlines()
        return f"FAILED with {process.returncode}: {errors[-1][:LONGEST_WORDS] if errors else ''}"
    return found.strip()


def results(case, seconds, options, settings):
    import torch.distributed as dist

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # It outlives every rank.
    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    processes = [start(case, rank, port, options, settings) for rank in range(options.ranks)]
    ends_at = time.monotonic() + seconds
    found = [result(case, rank, it, ends_at - time.monotonic(), options) for rank, it in enumerate(processes)]
    del store
    return [f"rank {rank}: {words}" for rank, words in enumerate(found) if words is not None]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--backend", choices=["nccl", "gloo"], default="nccl")
    parser.add_argument("--only", help=f"some of {','.join(CASES)}")
    for name, kind in (("--case", str), ("--rank", int), ("--port", int)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        return Rank(options).run()
    options.out.mkdir(parents=True, exist_ok=True)
    settings = machine.settings(BUNDLE) if options.backend == "nccl" else {}
    chosen = options.only.split(",") if options.only else list(CASES)
    failed = False
    with (options.out / "smoke.txt").open("w") as table:
        for case, (seconds, needs_nccl) in CASES.items():
            if case not in chosen or (needs_nccl and options.backend != "nccl"):
                continue
            began = time.monotonic()
            lines = [f"{case:12} {words}" for words in results(case, seconds, options, settings)]
            for line in (*lines, f"{case:12} {time.monotonic() - began:.0f} s"):
                print(line, flush=True)
                print(line, file=table, flush=True)
            # The error of this one is PyTorch's, and expected.
            failed |= case != "equal_split" and any("FAILED" in line or "HANGS" in line for line in lines)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
