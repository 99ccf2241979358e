"""One run of elastic_script.py, a PyTorch script with the Python package, in the local executor."""
import pathlib

import local
from job import joining

SCRIPT = pathlib.Path(__file__).parent / "elastic_script.py"


def script(setting, workers):
    """A run of the script."""
    command = [str(setting.python), str(SCRIPT), f"--data={setting.data.resolve()}"]
    return local.Run(setting, workers, lambda workers, volume: joining(workers, volume, command))


def kill(setting, repeat, whole_agent):
    """kill -9 of a rank's process, or of its agent, too."""
    return local.kill(setting, repeat, whole_agent, script)


def grow(setting, repeat):
    """A third worker, by saving the file."""
    return local.grow(setting, repeat, script)
