"""Watches a job's ledger while it grows, and measures a kill or a growth with it."""
import json
import os
import re
import subprocess
import threading
import time

from steps import Outcome, Step, mean

POLL_SECONDS = 0.001
FORMED = re.compile(r"generation (\d+): rank \d+ of (\d+)")


class Ledger:
    """The steps of a ledger so far. A thread records the time at which it first reads each line."""

    def __init__(self, state):
        self.state = state
        self.steps, self.seen, self.is_over = [], set(), False
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self):
        ledger, offsets = self.state / "ledger", {}
        while not self.is_over:
            time.sleep(POLL_SECONDS)
            try:
                names = os.listdir(ledger)
            except FileNotFoundError:
                continue
            # A hidden file is one that gets its name when it is complete.
            for name in sorted(name for name in names if not name.startswith(".")):
                self.read(ledger / name, offsets)

    def read(self, path, offsets):
        with open(path, "rb") as file:
            file.seek(offsets.get(path, 0))
            text = file.read()
        now = time.time()
        whole = text[: text.rfind(b"\n") + 1]
        offsets[path] = offsets.get(path, 0) + len(whole)
        for line in map(json.loads, whole.splitlines()):
            # A file starts with a header. Lines of the previous generation can follow, which its
            # own file may lack.
            if "step" in line and line["hash"] not in self.seen:
                self.seen.add(line["hash"])
                self.steps.append(Step(now, line["step"], str(line["generation"]), 0))

    def newer(self, life):
        """The steps of generations after `life`."""
        return [step for step in self.steps if int(step.life) > int(life)]

    def close(self):
        self.is_over = True
        self.thread.join()


def worlds(logs):
    """The world size of each generation, from the logs of the processes."""
    return dict(FORMED.findall("".join(log.read_text(errors="replace") for log in logs)))


def audit(programs, state):
    """Runs the auditor. Returns whether the ledger is correct, and the auditor's verdict."""
    command = [programs / "roundhouse-train", "audit", state]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode == 0, (done.stdout + done.stderr).strip().splitlines()[-1]


def outcome(run, before, first, since, world, verdict, pause=None):
    """The outcome of a run whose ledger is correct. `first` is the first step after the event."""
    steps = run.ledger.steps
    committed = [step for step in steps if step.life == before[-1].life][-1].number
    return Outcome(
        seconds=run.at(first) - since,
        pause=pause,
        usual=mean(before),
        lost=committed + 1 - steps[steps.index(first)].number,
        # The auditor has checked that no sample was repeated or skipped.
        repeated=0,
        skipped=0,
        world=int(world),
        note=verdict,
    )


def trains_whole(run):
    """Whether all three workers train."""
    return run.worlds().get(run.ledger.steps[-1].life) == str(3 * run.procs_per_worker)


def kill(run, setting, victims):
    """Kills processes of a run with SIGKILL, and returns the outcome."""
    ledger, before = run.ledger, list(run.ledger.steps)
    since = time.time()
    for victim in victims:
        os.kill(victim, 9)
    if not run.wait(setting.limit, lambda: ledger.newer(before[-1].life)):
        run.fail("a step after the kill")
    run.wait(setting.limit, lambda: trains_whole(run))
    time.sleep(0.5)
    return run.result(before, ledger.newer(before[-1].life)[0], since)


def grow(run, setting, add):
    """Adds a third worker with `add`, and returns the outcome."""
    ledger, before = run.ledger, list(run.ledger.steps)
    since = time.time()
    add()
    # Reads the logs only after a newer step, because reading takes CPU time from the measured
    # processes.
    grown = lambda: ledger.newer(before[-1].life) and trains_whole(run)
    if not run.wait(setting.limit, grown):
        run.fail("a step of three workers")
    time.sleep(0.5)
    first = ledger.newer(before[-1].life)[0]
    last = ledger.steps[ledger.steps.index(first) - 1]
    return run.result(before, first, since, pause=run.at(first) - run.at(last))
