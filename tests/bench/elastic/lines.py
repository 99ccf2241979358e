"""Reads the lines that train.py appends to one file per process, and computes outcomes from
them."""
from steps import Outcome, Step, usual


def read(home):
    """All steps of all ranks in the order of their times, each with its samples as (epoch, first,
    last)."""
    found = []
    for path in home.glob("steps-*"):
        _, rank, process = path.name.split("-", 2)
        # The last line may be incomplete, because the process may be writing it.
        for line in path.read_text().split("\n")[:-1]:
            at, number, world, first, last, epoch = line.split()
            step = Step(float(at), int(number), f"{rank}-{process}", int(world))
            found.append((step, (int(epoch), int(first), int(last))))
    return sorted(found, key=lambda it: it[0].at)


def steps(home):
    return [step for step, _ in read(home)]


def account(home, known):
    """The numbers of lost steps, repeated samples and skipped samples. A step of several ranks
    counts once."""
    found = read(home)
    reached = max(step.number for step, _ in found if step.life in known)
    again = [step for step, _ in found if step.life not in known]
    lost = reached + 1 - min(step.number for step in again) if again else None
    used, samples = {}, {}
    for step, (epoch, first, last) in found:
        world = step.life in known
        used.setdefault((world, step.number), set()).add((epoch, first, last))
        samples[step.number] = epoch
    size = lambda key: sum(last - first for _, first, last in used[key])
    twice = [number for world, number in used if world and (False, number) in used]
    repeated = sum(min(size((True, number)), size((False, number))) for number in twice)
    missing = set(range(1, max(samples) + 1)) - set(samples)
    return lost, repeated, len(missing) * 64


def outcome(home, known, since, first, before, note, pause=None):
    """The outcome of a run. `first` is the first step after the event, or None."""
    lost, repeated, skipped = account(home, known) if first else (None, None, None)
    seconds, world = (first.at - since, first.world) if first else (None, None)
    return Outcome(seconds, pause, usual(before), lost, repeated, skipped, world, note)
