"""One run of three torchrun agents on this machine, watched through the lines that train.py appends."""
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
from steps import Outcome, children, until

# Of PyTorch's documentation of elastic jobs; more restarts than any run needs.
OPTIONS = ["--nnodes=2:3", "--nproc-per-node=1", "--max-restarts=100", "--rdzv-backend=c10d", "--rdzv-id=bench"]
# A host name of this machine need not resolve.
OPTIONS += ["--local-addr=127.0.0.1"]
# What an agent gets, what the script gets, and variables. Tuned: short waits, and the workers' store is not shared by
# all rounds of the rendezvous. With the shared one an agent that joins later waits for an address that rank 0 tells in
# the first round only, and restarted workers find addresses of those before them. See pytorch issue 135712, too.
CONFS = {
    "defaults": ([], [], {}),
    "tuned": (
        ["--rdzv-conf=join_timeout=60,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"],
        ["--timeout=10"],
        {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    ),
}
NEWS = re.compile(r"(error|fail|restart|rendezvous|timed? ?out|signal)", re.IGNORECASE)


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def listens(port):
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


class Run:
    """The agents and their workers."""

    def __init__(self, setting, conf, agents):
        self.setting = setting
        self.rdzv, self.script, self.variables = CONFS[conf]
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="bench-elastic-torchrun-"))
        self.port = free_port()
        self.agents = []
        # Whatever ends this program: they would continue, and take the machine from the next one.
        atexit.register(self.end)
        self.steps = lambda: lines.steps(self.home)
        # The first one hosts the rendezvous; who comes while nobody does would.
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
            # What torchrun itself sets for more than one worker per agent.
            environment = {**os.environ, "OMP_NUM_THREADS": "1", **self.variables}
            agent = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        self.agents.append(agent)

    def wait(self, limit, condition):
        """What it is when it comes to be true; falsy if it does not in so many seconds."""
        # With no agent none is left to come back.
        return until(limit, condition, 0.02, lambda: all(agent.poll() is not None for agent in self.agents))

    def processes(self):
        agents = [agent.pid for agent in self.agents if agent.poll() is None]
        return {agent: children(agent) for agent in agents}

    def end(self):
        """Ends all that this run has started."""
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

    def news(self):
        """What the agents said last that sounds like news."""
        said = []
        for number, _ in enumerate(self.agents):
            text = (self.home / f"agent-{number}.log").read_text(errors="replace")
            said += [f"agent {number}: {line.strip()[:200]}" for line in text.splitlines() if NEWS.search(line)][-4:]
        return "\n".join(said)


def begin(setting, conf, agents):
    run = Run(setting, conf, agents)
    reached = lambda: [s for s in run.steps() if s.number >= setting.at_step and s.world == agents]
    if not run.wait(setting.limit, reached):
        note = run.news()
        run.end()
        return None, Outcome(None, note=f"did not begin within {setting.limit} s\n{note}")
    return run, None


def result(run, known, since, first, before, pause=None):
    time.sleep(2)
    note = run.news()
    shown = lines.outcome(run.home, known, since, first, before, note, pause)
    run.end()
    if first:
        shutil.rmtree(run.home, ignore_errors=True)
    return shown


def kill(setting, conf, repeat, whole_agent):
    """kill -9 of a worker, or of its agent, too; never of the agent that hosts the rendezvous."""
    run, failure = begin(setting, conf, 3)
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
    """A third agent."""
    run, failure = begin(setting, conf, 2)
    if failure:
        return failure
    known = {step.life for step in run.steps()}
    before = [step for step in run.steps() if step.life.startswith("0-")]
    since = time.time()
    run.add_agent()
    first = run.wait(setting.limit, lambda: [step for step in run.steps() if step.world == 3])
    pause = first and first[0].at - max(step.at for step in run.steps() if step.life in known)
    return result(run, known, since, first and first[0], before, pause)
