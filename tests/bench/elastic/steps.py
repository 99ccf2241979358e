"""Committed steps of all systems, and waits for conditions and processes."""
import dataclasses
import pathlib
import statistics
import time


@dataclasses.dataclass(frozen=True)
class Step:
    """A step that one process group committed."""

    at: float
    number: int
    life: str  # identifies the process group: its generation, or one of its processes
    world: int


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of one run. Times are in seconds; None: no step within the limit."""

    seconds: float | None
    pause: float | None = None
    usual: float | None = None
    lost: int | None = None
    repeated: int | None = None
    skipped: int | None = None
    world: int | None = None
    note: str = ""


def gaps(steps):
    """The times between consecutive steps."""
    times = [step.at for step in steps]
    return [later - earlier for earlier, later in zip(times, times[1:])]


def usual(steps):
    """The median time between two steps; None for fewer than two."""
    return statistics.median(gaps(steps)) if len(steps) > 1 else None


def mean(steps):
    """The mean time between two steps, for lines that are written in batches; None for fewer than
    two."""
    return (steps[-1].at - steps[0].at) / (len(steps) - 1) if len(steps) > 1 else None


def until(limit, condition, pause, is_over=lambda: False):
    """Waits until the condition's value is true, and returns it; None after `limit` seconds or when
    `is_over`."""
    deadline = time.monotonic() + limit
    while True:
        if value := condition():
            return value
        if is_over() or time.monotonic() > deadline:
            return None
        time.sleep(pause)


def children(parent):
    """The process ids of a process's children, from /proc, without zombies."""
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
    """An environment variable of a process."""
    pairs = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    values = dict(pair.partition(b"=")[::2] for pair in pairs)
    return values.get(name.encode(), b"").decode()
