"""One run of `kubectl-roundhouse run --local`, watched through its ledger."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time

from steps import Outcome, Step, children, usual, variable

LOOK_SECONDS = 0.001
FORMED = re.compile(r"generation (\d+): rank \d+ of (\d+)")


class Run:
    """The executor and its processes. A thread stamps each line of the ledger with the time it is first seen."""

    def __init__(self, programs, data, workers):
        self.programs = programs
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="bench-elastic-"))
        self.file, self.dir = self.home / "job.yaml", self.home / "run"
        self.save(workers)
        self.steps, self.seen, self.is_over = [], set(), False
        command = [programs / "kubectl-roundhouse", "run", "--local", "-f", self.file, "--data", data, "--dir", self.dir]
        with open(self.home / "output", "wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output)
        self.watcher = threading.Thread(target=self.watch)
        self.watcher.start()

    def save(self, workers):
        """The job's file, there at once as a whole."""
        trainer = {
            "model": {"name": "mlp", "hidden": [32]},
            "data": {"format": "idx"},
            "optimizer": {"name": "sgd", "learningRate": 0.05, "momentum": 0.9},
            "globalBatchSize": 64,
            "steps": 10_000_000,
            "seed": 7,
            "eval": {"everyEpochs": 1_000_000},
        }
        job = {
            "apiVersion": "roundhouse.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "digits"},
            "spec": {
                "workers": {"replicas": workers, "minReplicas": 2},
                "trainer": trainer,
                "checkpoint": {"volume": {"hostPath": {"path": "/srv"}}, "everySteps": 50},
            },
        }
        partial = self.file.with_suffix(".partial")
        partial.write_text(json.dumps(job))
        partial.rename(self.file)

    def watch(self):
        ledger, offsets = self.dir / "state/ledger", {}
        while not self.is_over:
            time.sleep(LOOK_SECONDS)
            try:
                names = os.listdir(ledger)
            except FileNotFoundError:
                continue
            for name in sorted(names):
                self.read(ledger / name, offsets)

    def read(self, path, offsets):
        with open(path, "rb") as file:
            file.seek(offsets.get(path, 0))
            text = file.read()
        now = time.time()
        whole = text[: text.rfind(b"\n") + 1]
        offsets[path] = offsets.get(path, 0) + len(whole)
        for line in map(json.loads, whole.splitlines()):
            # A file begins with a header, and with lines of the generation before that the disk may lack.
            if "step" in line and line["hash"] not in self.seen:
                self.seen.add(line["hash"])
                self.steps.append(Step(now, line["step"], str(line["generation"]), 0))

    def worlds(self):
        """The world size of each generation, as the processes' logs have it."""
        text = "".join(log.read_text(errors="replace") for log in (self.dir / "logs").glob("*.log"))
        return dict(FORMED.findall(text))

    def agents(self):
        """By worker index; in the first generation that is the rank, too."""
        return {int(variable(pid, "ROUNDHOUSE_WORKER_INDEX")): pid for pid in children(self.process.pid)}

    def wait(self, limit, condition):
        """Whether it came to be true in so many seconds."""
        deadline = time.monotonic() + limit
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    def stop(self):
        """Ends the executor, and with it all its processes."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.is_over = True
        self.watcher.join()

    def end(self):
        """Ends it, and returns the auditor's verdict."""
        self.stop()
        audit = subprocess.run(
            [self.programs / "roundhouse-train", "audit", self.dir / "state"], capture_output=True, text=True, check=False
        )
        return audit.returncode == 0, (audit.stdout + audit.stderr).strip().splitlines()[-1]


def failed(run, what):
    """Ends all with what the executor said."""
    run.stop()
    text = (run.home / "output").read_text(errors="replace")
    raise SystemExit(f"{what} did not come; {run.home} has the logs\n{text[-2000:]}")


def begin(setting, workers):
    run = Run(setting.programs, setting.data, workers)
    if not run.wait(setting.limit, lambda: run.steps and run.steps[-1].number >= setting.at_step):
        failed(run, f"step {setting.at_step}")
    return run


def result(run, before, first, since, pause=None):
    """What the run showed: `first` is the first step after what was done to it."""
    proven, verdict = run.end()
    if not proven:
        failed(run, f"the proof ({verdict})")
    committed = [step for step in run.steps if step.life == before[-1].life][-1].number
    outcome = Outcome(
        seconds=first.at - since,
        pause=pause,
        usual=usual(before),
        lost=committed + 1 - run.steps[run.steps.index(first)].number,
        # The auditor has proven it.
        repeated=0,
        skipped=0,
        world=int(run.worlds()[first.life]),
        note=verdict,
    )
    shutil.rmtree(run.home, ignore_errors=True)
    return outcome


def kill(setting, repeat, whole_agent):
    """kill -9 of a rank's process, or of its agent, too."""
    run = begin(setting, 3)
    agent = run.agents()[repeat % 3]
    victims = children(agent) + [agent] * whole_agent
    before = list(run.steps)
    since = time.time()
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    newer = lambda: [step for step in run.steps if int(step.life) > int(before[-1].life)]
    if not run.wait(setting.limit, newer):
        failed(run, "a step after the kill")
    # Until all three train again.
    run.wait(setting.limit, lambda: run.worlds().get(run.steps[-1].life) == "3")
    time.sleep(0.5)
    return result(run, before, newer()[0], since)


def grow(setting, _repeat):
    """A third worker, by saving the file."""
    run = begin(setting, 2)
    before = list(run.steps)
    run.save(3)
    since = time.time()
    if not run.wait(setting.limit, lambda: run.worlds().get(run.steps[-1].life) == "3"):
        failed(run, "a step of three")
    time.sleep(0.5)
    first = next(step for step in run.steps if int(step.life) > int(before[-1].life))
    last = run.steps[run.steps.index(first) - 1]
    return result(run, before, first, since, pause=first.at - last.at)
