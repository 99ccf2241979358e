"""One run on pods of the local cluster. Its volume is a directory of this machine, so the ledger
can be read here."""
import shutil

import ledger
from cluster import Namespace, shared_directory
from job import job
from ledger import Ledger
from steps import children, until

JOB = "digits"


def trainer(_setting, workers, volume):
    """The TrainingJob of the built-in trainer with the digits of the ConfigMap."""
    manifest = job(workers, volume)
    manifest["spec"]["trainer"]["data"]["volume"] = {"configMap": {"name": "digits-data"}}
    return manifest


class Run:
    """A TrainingJob in its own namespace."""

    def __init__(self, setting, workers, job=trainer):
        self.programs = setting.programs
        self.space = Namespace("bench-elastic-pods")
        self.volume = shared_directory(self.space.name)
        manifest = job(setting, workers, self.volume)
        self.procs_per_worker = manifest["spec"]["workers"].get("procsPerWorker", 1)
        self.space.apply(*self.space.example_data(), manifest)
        self.ledger = Ledger(self.volume / self.space.name / JOB)
        if not self.wait(setting.limit, lambda: self.ledger.steps and self.ledger.steps[-1].number >= setting.at_step):
            self.fail(f"step {setting.at_step} within {setting.limit} s")

    def worlds(self):
        return ledger.worlds(self.space.logs())

    def at(self, step):
        """The time at which a step was committed: when its ledger line was read."""
        return step.at

    def wait(self, limit, condition):
        """Waits at most `limit` seconds. Returns whether the condition became true."""
        return until(limit, condition, 0.005)

    def fail(self, what):
        """Ends the program with the state of the job and its pods."""
        text = self.space.describe(JOB)
        self.ledger.close()
        self.space.delete()
        raise SystemExit(f"no {what}\n{text}")

    def result(self, before, first, since, pause=None):
        """Ends the run, audits its ledger, and returns the outcome."""
        # The logs are deleted with the pods.
        world = self.worlds()[first.life]
        self.space.kubectl("delete", "trainingjob", JOB, "--wait")
        self.ledger.close()
        proven, verdict = ledger.audit(self.programs, self.ledger.state)
        if not proven:
            self.fail(f"correct ledger: {verdict}")
        shown = ledger.outcome(self, before, first, since, world, verdict, pause)
        self.space.delete()
        shutil.rmtree(self.volume, ignore_errors=True)
        return shown


def kill(setting, repeat, whole_agent, job=trainer):
    """Kills one process of a worker, or its agent, which is the container's main process, with
    SIGKILL."""
    run = Run(setting, 3, job)
    agent = run.space.process(f"{JOB}-worker-{repeat % 3}-0")
    processes = children(agent)
    return ledger.kill(run, setting, [agent] if whole_agent else [processes[repeat % len(processes)]])


def grow(setting, _repeat, job=trainer):
    """Adds a third worker with kubectl scale."""
    run = Run(setting, 2, job)
    return ledger.grow(run, setting, lambda: run.space.kubectl("scale", f"tj/{JOB}", "--replicas=3"))
