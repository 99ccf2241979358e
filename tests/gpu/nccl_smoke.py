#!/usr/bin/env python3
"""Checks NCCL with several processes on one GPU, without Roundhouse, in about a minute. All other
checks need this.

usage: tests/gpu/nccl_smoke.py --out DIR [--ranks 3] [--backend nccl|gloo] [--only CASE,...]

Each case runs in its own processes and has a deadline. A case that hangs is killed, and the next
one starts. Each result is printed and written to DIR/smoke.txt immediately. NCCL's logs are in
DIR/CASE-RANK.log, errors in DIR/CASE-RANK.err.
`--backend gloo` runs on CPUs, which tests this program, without the cases about errors and aborts.
"""
import argparse
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import machine
from nccl_cases import KILLING, MAX_ERROR_LENGTH, VICTIM, Rank

# A bundle has the file `environment` beside `tests`.
BUNDLE = HERE.parent.parent
# Deadline in seconds, and whether the case needs NCCL.
CASES = {
    "connect": (25, False), "blocking": (25, True), "speed": (30, False), "sends": (20, True),
    "all_to_all": (20, True), "equal_split": (20, True),
    "reform": (40, False), "killed": (40, True), "full_queue": (40, True),
}
def variables(case, rank, out, settings):
    """The environment of one process. Each rank pretends to be another host, because NCCL refuses
    two ranks of one host on a GPU."""
    return settings | {
        "NCCL_HOSTID": f"worker-{rank}", "OMP_NUM_THREADS": "1", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV",
        "NCCL_DEBUG_FILE": str(out / f"{case}-{rank}.log"),
        # An aborted operation must not wait for its usual timeout.
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
    """The result of a process as text; None for the rank that kills itself."""
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
        return f"FAILED with {process.returncode}: {errors[-1][:MAX_ERROR_LENGTH] if errors else ''}"
    return found.strip()


def results(case, seconds, options, settings):
    import torch.distributed as dist

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # The store must outlive every rank.
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
            started = time.monotonic()
            lines = [f"{case:12} {words}" for words in results(case, seconds, options, settings)]
            for line in (*lines, f"{case:12} {time.monotonic() - started:.0f} s"):
                print(line, flush=True)
                print(line, file=table, flush=True)
            # The error of `equal_split` is a known one of PyTorch.
            failed |= case != "equal_split" and any("FAILED" in line or "HANGS" in line for line in lines)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
