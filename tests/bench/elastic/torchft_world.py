"""One run of torchft on this machine: a lighthouse, and one replica group per worker, of one
process or of several that share the model."""
import atexit
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import lines
from ports import free_port
from steps import until
from torchrun import listens

SCRIPT = pathlib.Path(__file__).with_name("torchft_script.py")
# Short waits, as for tuned torchrun. A worker without a heartbeat for 1 s counts as dead (default:
# 5 s; it sends ten heartbeats per second). A quorum waits 2 s for the other live workers (default:
# 60 s).
LIGHTHOUSE = ["--min_replicas=2", "--quorum_tick_ms=20", "--join_timeout_ms=2000", "--heartbeat_timeout_ms=1000"]


class Run:
    """The processes of the lighthouse and the workers."""

    def __init__(self, setting, workers, size):
        self.setting, self.size = setting, size
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="bench-elastic-torchft-"))
        installed = os.environ["TORCHFT"]
        self.port, self.processes = free_port(), {}
        self.environment = {
            **os.environ,
            "PYTHONPATH": installed,
            "OMP_NUM_THREADS": "1",
            "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{self.port}",
        }
        # Without this the processes would outlive the program and slow down the next run.
        atexit.register(self.end)
        self.start("lighthouse", f"{installed}/bin/torchft_lighthouse", f"--bind=127.0.0.1:{self.port}", *LIGHTHOUSE)
        if not self.wait(setting.limit, lambda: listens(self.port)):
            self.fail("lighthouse")
        for worker in range(workers):
            self.add_worker(worker)
        reached = lambda: [s for s in self.steps() if s.number >= setting.at_step and s.world == workers]
        if not self.wait(setting.limit, reached):
            self.fail(f"step {setting.at_step} of {workers} workers")
        self.known = {step.life for step in self.steps()}
        self.before = [step for step in self.steps() if step.life.startswith("0-")]

    def start(self, name, *command):
        with open(self.home / f"{name}.log", "wb") as log:
            command = [self.setting.python, *command]
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment)

    def add_worker(self, worker):
        options = [f"--data={self.setting.data.resolve()}", f"--out={self.home}", f"--worker={worker}", "--timeout=10"]
        options += [f"--store-port={free_port()}", f"--size={self.size}"]
        for rank in range(self.size):
            self.start(f"worker-{worker}-{rank}", SCRIPT, *options, f"--rank={rank}")

    def steps(self):
        return lines.steps(self.home)

    def wait(self, limit, condition):
        """Waits at most `limit` seconds until the condition's value is true, and returns the
        value."""
        return until(limit, condition, 0.02)

    def fail(self, what):
        self.end()
        raise SystemExit(f"no {what} within {self.setting.limit} s; {self.home} has the logs")

    def end(self):
        """Kills all processes of this run."""
        atexit.unregister(self.end)
        for process in self.processes.values():
            process.kill()
            process.wait()

    def result(self, since, first, pause=None):
        """Ends the run, and returns the outcome."""
        time.sleep(2)
        ended = [name for name, process in self.processes.items() if process.poll() is not None]
        shown = lines.outcome(self.home, self.known, since, first, self.before, f"ended: {ended}", pause)
        self.end()
        if first:
            shutil.rmtree(self.home, ignore_errors=True)
        return shown


class System:
    """torchft with a number of processes in each replica group."""

    def __init__(self, size):
        self.size = size

    def kill(self, setting, repeat, _whole_agent):
        """Kills a worker with SIGKILL: its only process, or one of them, and the others at the same
        moment, as an ideal launcher does. Nothing restarts it."""
        run = Run(setting, 3, self.size)
        since = time.time()
        for rank in range(self.size):
            run.processes[f"worker-{repeat % 3}-{rank}"].kill()
        first = run.wait(setting.limit, lambda: [step for step in run.steps() if step.life not in run.known and step.at > since])
        return run.result(since, first and first[0])

    def grow(self, setting, _repeat):
        """Adds a third worker."""
        run = Run(setting, 2, self.size)
        since = time.time()
        run.add_worker(2)
        first = run.wait(setting.limit, lambda: [step for step in run.steps() if step.world == 3])
        pause = first and first[0].at - max(step.at for step in run.steps() if step.life in run.known)
        return run.result(since, first and first[0], pause)


PLAIN, SHARDED = System(1), System(2)
