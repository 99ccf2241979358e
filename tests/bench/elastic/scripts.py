"""One run of train.py, an ordinary PyTorch script, on pods with `elastic.mode: Restart`."""
import os
import shutil
import time

import lines
from cluster import REPOSITORY, Namespace, mount, of_python, shared_directory
from steps import children, until

JOB = "script"


def manifest(setting, workers, out):
    """The TrainingJob of the script. The timeout of collectives is 10 s, as in torchrun's tuned
    run."""
    read_only = [*of_python(setting.python), str(setting.data.resolve()), str(REPOSITORY / "tests/bench/elastic")]
    script = [str(setting.python), "-u", str(REPOSITORY / "tests/bench/elastic/train.py")]
    container = {
        "name": "trainer",
        "image": "localhost/toolbox:1",
        "command": script,
        "args": [f"--data={setting.data.resolve()}", f"--out={out}", "--timeout=10"],
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "OMP_NUM_THREADS", "value": "1"}],
    }
    template = {"containers": [container]}
    mount(template, [(path, True) for path in read_only] + [(str(out), False)])
    return {
        "apiVersion": "roundhouse.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": JOB},
        "spec": {
            "elastic": {"mode": "Restart"},
            "workers": {
                "replicas": workers,
                "minReplicas": 2,
                "template": {"spec": template},
            },
        },
    }


class Run:
    """The TrainingJob in its own namespace."""

    def __init__(self, setting, workers):
        self.space = Namespace("bench-elastic-script")
        self.out = shared_directory(self.space.name)
        self.space.apply(manifest(setting, workers, self.out))
        reached = lambda: [s for s in self.steps() if s.number >= setting.at_step and s.world == workers]
        if not self.wait(setting.limit, reached):
            text = self.space.describe(JOB)
            self.space.delete()
            raise SystemExit(f"no step {setting.at_step} within {setting.limit} s\n{text}")
        self.known = {step.life for step in self.steps()}
        self.before = [step for step in self.steps() if step.life.startswith("0-")]

    def steps(self):
        return lines.steps(self.out)

    def wait(self, limit, condition):
        """Waits at most `limit` seconds until the condition's value is true, and returns the
        value."""
        return until(limit, condition, 0.02)

    def result(self, since, first, pause=None):
        """Ends the run, and returns the outcome."""
        time.sleep(2)
        note = self.space.describe(JOB)
        shown = lines.outcome(self.out, self.known, since, first, self.before, note, pause)
        self.space.delete()
        shutil.rmtree(self.out, ignore_errors=True)
        return shown


def kill(setting, repeat, whole_agent):
    """Kills a script, or the worker's agent, which is the container's main process, with
    SIGKILL."""
    run = Run(setting, 3)
    agent = run.space.process(f"{JOB}-worker-{repeat % 3}-0")
    victims = [agent] if whole_agent else children(agent)
    since = time.time()
    for victim in victims:
        os.kill(victim, 9)
    first = run.wait(setting.limit, lambda: [step for step in run.steps() if step.life not in run.known])
    return run.result(since, first and first[0])


def grow(setting, _repeat):
    """Adds a third worker with kubectl scale."""
    run = Run(setting, 2)
    since = time.time()
    run.space.kubectl("scale", f"tj/{JOB}", "--replicas=3")
    first = run.wait(setting.limit, lambda: [step for step in run.steps() if step.world == 3])
    pause = first and first[0].at - max(step.at for step in run.steps() if step.life in run.known)
    return run.result(since, first and first[0], pause)
