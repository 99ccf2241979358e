"""One run of `kubectl-roundhouse run --local` with the built-in trainer or a script with the Python
package."""
import atexit
import json
import pathlib
import shutil
import signal
import subprocess
import tempfile

import ledger
from job import job
from ledger import Ledger
from steps import children, until, variable


class Run:
    """A running local executor with its processes."""

    procs_per_worker = 1

    def __init__(self, setting, workers, job=job, options=()):
        self.programs, self.job = setting.programs, job
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="bench-elastic-"))
        self.file, self.dir = self.home / "job.yaml", self.home / "run"
        self.save(workers)
        command = [self.programs / "kubectl-roundhouse", "run", "--local", "-f", self.file]
        command += ["--dir", self.dir, *options]
        with open(self.home / "output", "wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output)
        self.ledger = Ledger(self.dir / "state")
        atexit.register(self.stop)
        if not self.wait(setting.limit, lambda: self.ledger.steps and self.ledger.steps[-1].number >= setting.at_step):
            self.fail(f"step {setting.at_step} within {setting.limit} s")

    def save(self, workers):
        """Replaces the job's file by renaming, so that the executor never reads a part of it."""
        partial = self.file.with_suffix(".partial")
        partial.write_text(json.dumps(self.job(workers, "/srv")))
        partial.rename(self.file)

    def worlds(self):
        return ledger.worlds((self.dir / "logs").glob("*.log"))

    def agents(self):
        """The process ids of the agents by worker index, which is the rank in the first
        generation."""
        return {int(variable(pid, "ROUNDHOUSE_WORKER_INDEX")): pid for pid in children(self.process.pid)}

    def at(self, step):
        """The time at which a step was committed: when its ledger line was read."""
        return step.at

    def wait(self, limit, condition):
        """Waits at most `limit` seconds. Returns whether the condition became true."""
        return until(limit, condition, 0.005, lambda: self.process.poll() is not None)

    def stop(self):
        """Ends the executor, which ends all its processes."""
        atexit.unregister(self.stop)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.ledger.close()

    def fail(self, what):
        """Ends the program with the output of the executor."""
        self.stop()
        text = (self.home / "output").read_text(errors="replace")
        raise SystemExit(f"no {what}; {self.home} has the logs\n{text[-2000:]}")

    def result(self, before, first, since, pause=None):
        """Ends the run, audits its ledger, and returns the outcome."""
        self.stop()
        proven, verdict = ledger.audit(self.programs, self.dir / "state")
        if not proven:
            self.fail(f"correct ledger: {verdict}")
        shown = ledger.outcome(self, before, first, since, self.worlds()[first.life], verdict, pause)
        shutil.rmtree(self.home, ignore_errors=True)
        return shown


def trainer(setting, workers):
    """Starts a run of the built-in trainer."""
    return Run(setting, workers, options=["--data", setting.data])


def kill(setting, repeat, whole_agent, start=trainer):
    """Kills a rank's process with SIGKILL; with `whole_agent` its agent, too."""
    run = start(setting, 3)
    agent = run.agents()[repeat % 3]
    return ledger.kill(run, setting, children(agent) + [agent] * whole_agent)


def grow(setting, _repeat, start=trainer):
    """Adds a third worker by saving the job's file."""
    run = start(setting, 2)
    return ledger.grow(run, setting, lambda: run.save(3))
