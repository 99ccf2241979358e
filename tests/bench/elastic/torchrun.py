"""One run of three torchrun agents on this machine. The lines that train.py appends show its
steps."""
import atexit
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import lines
from ports import free_port
from steps import Outcome, children, until

# The options of PyTorch's documentation of elastic jobs, with more restarts than a run needs.
OPTIONS = ["--nnodes=2:3", "--nproc-per-node=1", "--max-restarts=100", "--rdzv-backend=c10d", "--rdzv-id=bench"]
# The host name of this machine may not resolve.
OPTIONS += ["--local-addr=127.0.0.1"]
# Options of the agent, options of the script, and environment variables. "tuned" has short waits,
# and each round of the rendezvous has its own store for the workers. With a shared store, an agent
# that joins later waits for an address that rank 0 publishes in the first round only, and restarted
# workers read addresses of their predecessors. See PyTorch issue 135712.
CONFS = {
    "defaults": ([], [], {}),
    "tuned": (
        ["--rdzv-conf=join_timeout=60,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"],
        ["--timeout=10"],
        {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    ),
}
MESSAGE = re.compile(r"(error|fail|restart|rendezvous|timed? ?out|signal)", re.IGNORECASE)


def listens(port):
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


class Run:
    """The processes of the agents and their workers."""

    def __init__(self, setting, conf, agents):
        self.setting = setting
        self.rdzv, self.script, self.variables = CONFS[conf]
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="bench-elastic-torchrun-"))
        self.port = free_port()
        self.agents = []
        # Without this the processes would outlive the program and slow down the next run.
        atexit.register(self.end)
        self.steps = lambda: lines.steps(self.home)
        # The first agent hosts the rendezvous. Another agent that started too early would host its
        # own.
        self.add_agent()
        if not self.wait(setting.limit, lambda: listens(self.port)):
            self.end()
            raise SystemExit(f"no rendezvous within {setting.limit} s; {self.home} has the logs")
        for _ in range(agents - 1):
            self.add_agent()

    def add_agent(self):
        command = [self.setting.python, "-m", "torch.distributed.run", *OPTIONS, *self.rdzv]
        command += [f"--rdzv-endpoint=127.0.0.1:{self.port}", pathlib.Path(__file__).with_name("train.py")]
        command += [f"--data={self.setting.data}", f"--out={self.home}", *self.script]
        with open(self.home / f"agent-{len(self.agents)}.log", "wb") as log:
            # torchrun sets OMP_NUM_THREADS itself if an agent has more than one worker.
            environment = {**os.environ, "OMP_NUM_THREADS": "1", **self.variables}
            agent = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        self.agents.append(agent)

    def wait(self, limit, condition):
        """Waits at most `limit` seconds until the condition's value is true, and returns the
        value."""
        # Without a running agent no worker can restart, so waiting is useless.
        return until(limit, condition, 0.02, lambda: all(agent.poll() is not None for agent in self.agents))

    def processes(self):
        agents = [agent.pid for agent in self.agents if agent.poll() is None]
        return {agent: children(agent) for agent in agents}

    def end(self):
        """Kills all processes of this run."""
        atexit.unregister(self.end)
        workers = {pid for of in self.processes().values() for pid in of} | {int(s.life.split("-")[1]) for s in self.steps()}
        for agent in self.agents:
            if agent.poll() is None:
                agent.kill()
            agent.wait()
        for worker in workers:
            try:
                if str(self.home).encode() in pathlib.Path(f"/proc/{worker}/cmdline").read_bytes():
                    os.kill(worker, signal.SIGKILL)
            except OSError:
                pass

    def messages(self):
        """The last four messages of each agent about errors, restarts and the rendezvous."""
        messages = []
        for number, _ in enumerate(self.agents):
            text = (self.home / f"agent-{number}.log").read_text(errors="replace")
            messages += [f"agent {number}: {line.strip()[:200]}" for line in text.splitlines() if MESSAGE.search(line)][-4:]
        return "\n".join(messages)


def start(setting, conf, agents):
    run = Run(setting, conf, agents)
    reached = lambda: [s for s in run.steps() if s.number >= setting.at_step and s.world == agents]
    if not run.wait(setting.limit, reached):
        note = run.messages()
        run.end()
        return None, Outcome(None, note=f"no step {setting.at_step} within {setting.limit} s\n{note}")
    return run, None


def result(run, known, since, first, before, pause=None):
    time.sleep(2)
    note = run.messages()
    shown = lines.outcome(run.home, known, since, first, before, note, pause)
    run.end()
    if first:
        shutil.rmtree(run.home, ignore_errors=True)
    return shown


def kill(setting, conf, repeat, whole_agent):
    """Kills a worker with SIGKILL; with `whole_agent` its agent, too, but never the agent that
    hosts the rendezvous."""
    run, failure = start(setting, conf, 3)
    if failure:
        return failure
    known = {step.life for step in run.steps()}
    if whole_agent:
        host = run.agents[0].pid
        agent = [pid for pid in run.processes() if pid != host][repeat % 2]
        victims = [agent, *run.processes()[agent]]
    else:
        victims = [int(life.split("-")[1]) for life in known if life.startswith(f"{repeat % 3}-")]
    before = [step for step in run.steps() if step.life.startswith("0-")]
    since = time.time()
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    first = run.wait(setting.limit, lambda: [step for step in run.steps() if step.life not in known])
    return result(run, known, since, first and first[0], before)


def grow(setting, conf, _repeat):
    """Adds a third agent."""
    run, failure = start(setting, conf, 2)
    if failure:
        return failure
    known = {step.life for step in run.steps()}
    before = [step for step in run.steps() if step.life.startswith("0-")]
    since = time.time()
    run.add_agent()
    first = run.wait(setting.limit, lambda: [step for step in run.steps() if step.world == 3])
    pause = first and first[0].at - max(step.at for step in run.steps() if step.life in known)
    return result(run, known, since, first and first[0], before, pause)
