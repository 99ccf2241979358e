"""One run of elastic_script.py, a PyTorch script with the Python package, on pods."""
import os

import pods
from cluster import REPOSITORY, mount, of_python
from job import joining

SCRIPT = REPOSITORY / "tests/bench/elastic/elastic_script.py"


def script(setting, workers, volume):
    """The TrainingJob of the script. Its container mounts Python, PyTorch and the package from this
    machine."""
    package, data = os.environ["PYTHONPATH"], str(setting.data.resolve())
    manifest = joining(workers, volume, [str(setting.python), str(SCRIPT), f"--data={data}"])
    template = manifest["spec"]["workers"]["template"]["spec"]
    container = template["containers"][0]
    container["image"] = "localhost/toolbox:1"
    container["env"] += [{"name": "HOME", "value": "/tmp"}, {"name": "PYTHONPATH", "value": package}]
    read_only = [*of_python(setting.python), package, data, str(SCRIPT.parent)]
    mount(template, [(path, True) for path in read_only])
    return manifest


def kill(setting, repeat, whole_agent):
    """Kills a rank's process, or its agent, which is the container's main process, with SIGKILL."""
    return pods.kill(setting, repeat, whole_agent, script)


def grow(setting, repeat):
    """Adds a third worker with kubectl scale."""
    return pods.grow(setting, repeat, script)
