"""One run of `kubectl-roundhouse run --local`: of the built-in trainer, or of a script with the Python package."""
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
    """The executor and its processes."""

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
            self.fail(f"step {setting.at_step}")

    def save(self, workers):
        """The job's file, there at once as a whole."""
        partial = self.file.with_suffix(".partial")
        partial.write_text(json.dumps(self.job(workers, "/srv")))
        partial.rename(self.file)

    def worlds(self):
        return ledger.worlds((self.dir / "logs").glob("*.log"))

    def agents(self):
        """By worker index; in the first generation that is the rank, too."""
        return {int(variable(pid, "ROUNDHOUSE_WORKER_INDEX")): pid for pid in children(self.process.pid)}

    def at(self, step):
        """When a step was committed, as far as is known."""
        return step.at

    def wait(self, limit, condition):
        """Whether it came to be true in so many seconds."""
        return until(limit, condition, 0.005, lambda: self.process.poll() is not None)

    def stop(self):
        """Ends the executor, and with it all its processes."""
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
        """Ends all with what the executor said."""
        self.stop()
        text = (self.home / "output").read_text(errors="replace")
        raise SystemExit(f"{what} did not come; {self.home} has the logs\n{text[-2000:]}")

    def result(self, before, first, since, pause=None):
        """Ends it, and says what it showed."""
        self.stop()
        proven, verdict = ledger.audit(self.programs, self.dir / "state")
        if not proven:
            self.fail(f"the proof ({verdict})")
        shown = ledger.outcome(self, before, first, since, self.worlds()[first.life], verdict, pause)
        shutil.rmtree(self.home, ignore_errors=True)
        return shown


def trainer(setting, workers):
    """A run of the built-in trainer."""
    return Run(setting, workers, options=["--data", setting.data])


def kill(setting, repeat, whole_agent, start=trainer):
    """kill -9 of a rank's process, or of its agent, too."""
    run = start(setting, 3)
    agent = run.agents()[repeat % 3]
    return ledger.kill(run, setting, children(agent) + [agent] * whole_agent)


def grow(setting, _repeat, start=trainer):
    """A third worker, by saving the file."""
    run = start(setting, 2)
    return ledger.grow(run, setting, lambda: run.save(3))
