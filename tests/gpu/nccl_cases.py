"""The cases of nccl_smoke.py. Each runs in its own processes, one for each rank."""
import datetime
import json
import os
import signal
import statistics
import threading
import time

# In these cases, rank 1 kills itself in its all-reduce number AT.
KILLING, VICTIM, AT = ("killed", "full_queue"), 1, 30
MAX_ERROR_LENGTH = 300


class Rank:
    """One process of a case. Its results are in `found`."""

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
        started = time.monotonic()
        group = self.group(self.options.case, self.options.rank, self.options.ranks, **more)
        self.found["connect_s"] = round(time.monotonic() - started, 2)
        return group

    def check_sum(self, group, size):
        ones = self.torch.ones(1000, device=self.device)
        group.allreduce([ones]).wait()
        self.wait_for_device()
        assert float(ones.min()) == float(ones.max()) == size, (float(ones.min()), float(ones.max()))

    def launch_microseconds(self, group, calls=50):
        """The host time of one call of all-reduce."""
        small = self.torch.zeros(256, device=self.device)
        for _ in range(5):
            group.allreduce([small]).wait()
        self.wait_for_device()
        started = time.perf_counter()
        for _ in range(calls):
            group.allreduce([small]).wait()
        spent = time.perf_counter() - started
        self.wait_for_device()
        return round(spent / calls * 1e6)

    # Each of the following methods is a case.

    def connect(self):
        self.check_sum(self.group_of_all(), self.options.ranks)

    def blocking(self):
        """Connects with a blocking communicator. If `connect` fails and this works, the
        non-blocking mode is the cause."""
        group = self.group_of_all(blocking=1)
        self.check_sum(group, self.options.ranks)
        self.found["launch_us"] = self.launch_microseconds(group)

    def speed(self):
        group = self.group_of_all()
        self.found["launch_us"] = self.launch_microseconds(group)
        for name, numel, times in (("small_ms", 256, 30), ("25MiB_ms", 25 << 18, 6)):
            tensor, spans = self.torch.zeros(numel, device=self.device), []
            for _ in range(times):
                started = time.perf_counter()
                group.allreduce([tensor]).wait()
                self.wait_for_device()
                spans.append((time.perf_counter() - started) * 1e3)
            self.found[name] = round(statistics.median(spans), 2)

    def sends(self):
        """Ranks send parts to each other in one launch, as the trainer does with `slices`."""
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
        """Passes the lengths of the parts. Meanwhile PyTorch 2.11 polls for errors without the lock
        of the communicator."""
        self.exchange([2] * self.options.ranks)

    def equal_split(self):
        """Passes no lengths: PyTorch 2.11 calls ncclAlltoAll and treats ncclInProgress as an error,
        so "NCCL Error 7" is expected."""
        self.exchange([])

    def exchange(self, lengths):
        group, size = self.group_of_all(), self.options.ranks
        mine = self.torch.full((2 * size,), float(self.options.rank), device=self.device)
        out = self.torch.empty_like(mine)
        group.alltoall_base(out, mine, lengths, lengths, self.dist.AllToAllOptions()).wait()
        self.wait_for_device()
        assert out.tolist() == [float(rank) for rank in range(size) for _ in range(2)], out.tolist()

    def reform(self):
        """Connects ten groups one after the other. Each is shut down after the next one has
        connected. Shows leaks."""
        size, before, spans, early = self.options.ranks, None, [], None
        for number in range(10):
            started = time.monotonic()
            group = self.group(f"reform-{number}", (self.options.rank + number) % size, size)
            spans.append(time.monotonic() - started)
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
        """Kills a rank in an all-reduce. Measures when PyTorch notices, and how long the abort and
        the next group take."""
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
                    # More launches than the queue of a stream holds, so the host blocks in one of
                    # them.
                    busy.add_(1)
                self.wait_for_device()
        except Exception as error:
            self.found["error"] = f"{type(error).__name__}: {error}"[:MAX_ERROR_LENGTH]
        self.found["free_again_s"] = round(time.monotonic() - died_at[0], 2)
        watch.join()
        started = time.monotonic()
        left = [other for other in range(size) if other != VICTIM]
        self.check_sum(self.group("after", left.index(rank), len(left)), len(left))
        self.found["next_group_s"] = round(time.monotonic() - started, 2)
        started = time.monotonic()
        del group
        self.found["free_s"] = round(time.monotonic() - started, 2)

    def interrupt(self, group, died_at):
        """Waits at most 6 s until PyTorch reports the error, and aborts the group."""
        while not died_at:
            time.sleep(0.01)
        while time.monotonic() < died_at[0] + 6 and group.get_error().name == "SUCCESS":
            time.sleep(0.02)
        self.found["get_error"] = f"{group.get_error().name} after {time.monotonic() - died_at[0]:.2f} s"
        started = time.monotonic()
        try:
            group.abort()
            self.found["abort_s"] = round(time.monotonic() - started, 2)
        except Exception as error:
            self.found["abort"] = f"{type(error).__name__}: {error}"[:MAX_ERROR_LENGTH]

    def full_queue(self):
        self.killed(launches=5000)

    def run(self):
        getattr(self, self.options.case)()
        print(json.dumps(self.found), flush=True)
        # The usual exit would run destructors that wait for peers.
        os._exit(0)
