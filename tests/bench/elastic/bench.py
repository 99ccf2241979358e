"""Measures recovery and growth of Roundhouse, torchft and torchrun; prints a Markdown table.

The pods run on the local cluster, on which Roundhouse is installed.

Progress goes to stderr. The file --notes gets all outcomes and the last messages of torchrun's
agents.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import sys

# For ports.py.
sys.path.append(str(pathlib.Path(__file__).parents[1] / "trainer"))

import local
import pods
import python
import python_pods
import scripts
import sharded
import torchft_world
import torchrun

EVENTS = {
    "kill": "kill -9 of one of three workers' process → next committed step",
    "agent": "kill -9 of a whole worker, agent and process → next committed step",
    "grow": "a third worker added → first step with it",
}
SYSTEMS = {
    "local": "Roundhouse, local executor",
    "python": "PyTorch script with roundhouse, local executor",
    "pods": "Roundhouse, pods",
    "python-pods": "PyTorch script with roundhouse, pods",
    "restart": "PyTorch script on Roundhouse's pods",
    "torchft": "torchft, tuned",
    "sharded": "FSDP2 script with roundhouse, local executor",
    "sharded-pods": "FSDP2 script with roundhouse, pods",
    "torchft-sharded": "FSDP2 script with torchft, tuned",
    "defaults": "torchrun, defaults",
    "tuned": "torchrun, tuned",
}


@dataclasses.dataclass(frozen=True)
class Setting:
    programs: pathlib.Path
    python: pathlib.Path
    data: pathlib.Path
    limit: float
    at_step: int


OURS = {
    "local": local,
    "python": python,
    "pods": pods,
    "python-pods": python_pods.PLAIN,
    "restart": scripts,
    "torchft": torchft_world.PLAIN,
    "sharded": sharded,
    "sharded-pods": python_pods.SHARDED,
    "torchft-sharded": torchft_world.SHARDED,
}


def measure(setting, system, event, repeat):
    if ours := OURS.get(system):
        return ours.grow(setting, repeat) if event == "grow" else ours.kill(setting, repeat, event == "agent")
    if event == "grow":
        return torchrun.grow(setting, system, repeat)
    return torchrun.kill(setting, system, repeat, event == "agent")


def seconds(value):
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def timed(outcomes, limit):
    """The median and the worst time, and the number of outcomes without a step within the limit."""
    times = [it.seconds for it in outcomes if it.seconds is not None]
    if not outcomes:
        return "-"
    missing = len(outcomes) - len(times)
    never = f"not within {limit:.0f} s ({missing} of {len(outcomes)})"
    if not times:
        return never
    text = f"{seconds(statistics.median(times))}, worst {seconds(max(times))}"
    return f"{text}; {never}" if missing else text


def worst(outcomes, name):
    values = [getattr(it, name) for it in outcomes]
    return str(max((it for it in values if it is not None), default="-"))


def paused(outcomes):
    found = [it for it in outcomes if it.pause is not None]
    if not found:
        return "-"
    pauses, steps = [it.pause for it in found], statistics.median(it.usual for it in found)
    text = "{:.0f} ms, worst {:.0f} ms" if max(pauses) < 1 else "{0:.0f} ms, worst {1:.0f} ms"
    return f"{text.format(statistics.median(pauses) * 1e3, max(pauses) * 1e3)} (a step: {steps * 1e3:.1f} ms)"


def rows(results, systems, limit):
    for event, title in EVENTS.items():
        of = [results.get((system, event), []) for system in systems]
        if not any(of):
            continue
        yield [title, *(timed(outcomes, limit) for outcomes in of)]
        if event == "grow":
            yield ["… pause of the other workers", *map(paused, of)]
        counts = [" / ".join(worst(it, name) for name in ("lost", "repeated", "skipped")) for it in of]
        yield ["… worst of: steps lost / samples repeated / skipped", *counts]


def table(results, systems, limit):
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    machine = f"{len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB; median and worst"
    repeats = max(map(len, results.values()), default=0)
    lines = [[f"{machine} of {repeats}", *(SYSTEMS[system] for system in systems)], ["---"] * (len(systems) + 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [*lines, *rows(results, systems, limit)])


def report(notes, name, outcome):
    """Prints an outcome as one line to stderr, and appends it with its note to the notes."""
    values = {key: value for key, value in dataclasses.asdict(outcome).items() if key != "note"}
    print(f"    {name}: {json.dumps(values)}", file=sys.stderr, flush=True)
    with open(notes, "a", encoding="utf-8") as file:
        print(f"{name}: {json.dumps(values)}\n{outcome.note}", file=file)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=pathlib.Path, required=True, help="folder of the release binaries")
    parser.add_argument("--python", type=pathlib.Path, required=True, help="a Python with torch 2.11")
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--notes", type=pathlib.Path, required=True, help="file for outcomes and torchrun's messages")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--events", default=",".join(EVENTS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=float, default=60, help="seconds to wait for each step")
    parser.add_argument("--at-step", type=int, default=225, help="the step after which the event happens; every 50th step has a checkpoint")
    options = parser.parse_args()
    setting = Setting(options.programs, options.python, options.data, options.limit, options.at_step)
    results, systems = {}, options.systems.split(",")
    try:
        for system in systems:
            for event in options.events.split(","):
                for repeat in range(options.repeats):
                    outcome = measure(setting, system, event, repeat)
                    results.setdefault((system, event), []).append(outcome)
                    report(options.notes, f"{SYSTEMS[system]}, {event} {repeat + 1}", outcome)
    except KeyboardInterrupt:
        print("interrupted: the table has the measurements so far", file=sys.stderr)
    print(table(results, systems, options.limit))


if __name__ == "__main__":
    main()
