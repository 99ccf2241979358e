"""One run of elastic_script.py, a PyTorch script with the Python package, on pods. With SHARDED its
workers are replicas of two processes that share the model by FSDP2."""
import dataclasses
import os
from collections.abc import Callable

import pods
import sharded
from cluster import REPOSITORY, mount, of_python
from job import joining

SCRIPT = REPOSITORY / "tests/bench/elastic/elastic_script.py"


def script(setting, workers, volume, options=(), sharded_over=1):
    """The TrainingJob of the script. Its container mounts Python, PyTorch and the package from this
    machine."""
    package, data = os.environ["PYTHONPATH"], str(setting.data.resolve())
    command = [str(setting.python), str(SCRIPT), f"--data={data}", *options]
    manifest = joining(workers, volume, command, sharded_over)
    template = manifest["spec"]["workers"]["template"]["spec"]
    container = template["containers"][0]
    container["image"] = "localhost/toolbox:1"
    container["env"] += [{"name": "HOME", "value": "/tmp"}, {"name": "PYTHONPATH", "value": package}]
    read_only = [*of_python(setting.python), package, data, str(SCRIPT.parent)]
    mount(template, [(path, True) for path in read_only])
    return manifest


def sharded_script(setting, workers, volume):
    """The TrainingJob of the script whose workers are replicas."""
    return script(setting, workers, volume, sharded.Run.options, sharded.SIZE)


@dataclasses.dataclass(frozen=True)
class System:
    """A system of the benchmark. `job` makes the TrainingJob."""

    job: Callable

    def kill(self, setting, repeat, whole_agent):
        """Kills one process of a worker, or its agent, which is the container's main process, with
        SIGKILL."""
        return pods.kill(setting, repeat, whole_agent, self.job)

    def grow(self, setting, repeat):
        """Adds a third worker with kubectl scale."""
        return pods.grow(setting, repeat, self.job)


PLAIN, SHARDED = System(script), System(sharded_script)
