"""Committed steps as both systems tell them, and what follows from them."""
import dataclasses
import pathlib
import statistics
import time


@dataclasses.dataclass(frozen=True)
class Step:
    """A step that one world committed."""

    at: float
    number: int
    life: str  # of the world: a generation, or a process
    world: int


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one run showed. Seconds; None: not within the limit."""

    seconds: float | None
    pause: float | None = None
    usual: float | None = None
    lost: int | None = None
    repeated: int | None = None
    skipped: int | None = None
    world: int | None = None
    note: str = ""


def gaps(steps):
    """Times between steps that follow each other."""
    times = [step.at for step in steps]
    return [later - earlier for earlier, later in zip(times, times[1:])]


def usual(steps):
    """Median time between two steps; None without any."""
    return statistics.median(gaps(steps)) if len(steps) > 1 else None


def mean(steps):
    """Mean time between two steps, for lines that come several at a time; None without any."""
    return (steps[-1].at - steps[0].at) / (len(steps) - 1) if len(steps) > 1 else None


def until(limit, condition, pause, is_over=lambda: False):
    """What a condition is when it comes to be true; None if it does not in so many seconds, or all is over before."""
    deadline = time.monotonic() + limit
    while True:
        if value := condition():
            return value
        if is_over() or time.monotonic() > deadline:
            return None
        time.sleep(pause)


def children(parent):
    """Processes whose parent this is, by what /proc says; those that have ended are left out."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return sorted(found)


def variable(pid, name):
    """A variable of a process' environment."""
    pairs = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    values = dict(pair.partition(b"=")[::2] for pair in pairs)
    return values.get(name.encode(), b"").decode()
