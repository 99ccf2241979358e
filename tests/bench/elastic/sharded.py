"""One run of elastic_script.py in the local executor, whose workers are replicas of two processes
that share the model by FSDP2."""
import local
import python
from job import joining
from ledger import kill as kill_processes
from steps import children

SIZE = 2


class Run(python.Run):
    """A run of replicas."""

    procs_per_worker = SIZE
    options = ["--sharded"]

    def job_of(self, workers, volume, command):
        return joining(workers, volume, command, SIZE)


def kill(setting, repeat, whole_agent):
    """Kills one process of a replica with SIGKILL; with `whole_agent` all of them and their
    agent."""
    run = Run(setting, 3)
    agent = run.agents()[repeat % 3]
    processes = children(agent)
    victims = [*processes, agent] if whole_agent else [processes[repeat % SIZE]]
    return kill_processes(run, setting, victims)


def grow(setting, repeat):
    """Adds a third replica by saving the job's file."""
    return local.grow(setting, repeat, Run)
