"""One run of elastic_script.py, a PyTorch script with the Python package, in the local executor."""
import pathlib

import local
from job import joining

SCRIPT = pathlib.Path(__file__).parent / "elastic_script.py"


class Run(local.Run):
    """A run whose processes write their commit times. A line of the ledger appears up to 50 ms
    later."""

    # Options of the script.
    options = []

    def __init__(self, setting, workers):
        command = [str(setting.python), str(SCRIPT), f"--data={setting.data.resolve()}", *self.options]
        super().__init__(
            setting, workers, lambda workers, volume: self.job_of(workers, volume, [*command, f"--out={self.home}"])
        )

    def job_of(self, workers, volume, command):
        return joining(workers, volume, command)

    def at(self, step):
        lines = [line.split() for path in self.home.glob("steps-*") for line in path.read_text().splitlines()]
        found = [float(at) for at, generation, number in lines if (generation, int(number)) == (step.life, step.number)]
        return min(found)


def kill(setting, repeat, whole_agent):
    """Kills a rank's process with SIGKILL; with `whole_agent` its agent, too."""
    return local.kill(setting, repeat, whole_agent, Run)


def grow(setting, repeat):
    """Adds a third worker by saving the job's file."""
    return local.grow(setting, repeat, Run)
