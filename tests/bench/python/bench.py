"""Measures the time that `commit` and the sampler of the Python package add to a step of plain DDP;
prints a Markdown table.

With one rank the package uses no DDP, so that case is also compared with the bare model.

Both sides train the same model with the same samples, optimizer and threads (one per rank). Their
processes run at the same time and train in turns of some steps. The overhead is the median over all
pairs of turns, so a temporarily slower machine affects both sides. The losses of both sides must be
equal up to rounding.
"""
import argparse
import pathlib
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "trainer-image/python/tests"))

from sides import elastic, plain

GOAL_PERCENT = 3.0
# The largest relative difference of losses that sums in another order cause.
ROUNDING = 1e-4
MODELS = ("mlp", "resnet18")


def difference(left, right):
    """The largest relative difference of two lists of losses."""
    return max(abs(a - b) / max(abs(a), 1e-3) for a, b in zip(left, right, strict=True))


def measure(name, world, is_bare, options):
    """The pairs of turns (plain, elastic) of one round, and the largest difference of their
    losses."""
    with tempfile.TemporaryDirectory() as place, plain(name, world, is_bare) as theirs, elastic(name, world, place) as ours:
        # The first steps allocate memory, so they are not counted.
        first = [side.train(3) for side in (theirs, ours)]
        num_steps = max(2, round(options.seconds / first[0].seconds))
        pairs = [tuple(first)]
        for number in range(options.pairs):
            # The sides alternate in which is first.
            order = (theirs, ours) if number % 2 == 0 else (ours, theirs)
            turns = {side: side.train(num_steps) for side in order}
            pairs.append((turns[theirs], turns[ours]))
    apart = max(difference(mine.losses, yours.losses) for yours, mine in pairs)
    if apart > ROUNDING:
        raise SystemExit(f"{name}, {world} ranks: the losses differ by {apart:.1e}, so the sides do not train the same")
    return pairs[1:], apart


def percent(pairs, field):
    return [100 * (getattr(mine, field) / getattr(yours, field) - 1) for yours, mine in pairs]


def row(name, world, is_bare, rounds):
    pairs = [pair for of_round, _ in rounds for pair in of_round]
    yours, mine = (statistics.median(1e3 * pair[side].seconds for pair in pairs) for side in (0, 1))
    price, cpu = (statistics.median(percent(pairs, field)) for field in ("seconds", "cpu_seconds"))
    of_rounds = sorted(statistics.median(percent(of_round, "seconds")) for of_round, _ in rounds)
    apart = max(apart for _, apart in rounds)
    spread = f"{of_rounds[0]:.1f} to {of_rounds[-1]:.1f} %"
    beside = "the bare model" if is_bare else "DDP"
    cells = (name, world, beside, f"{yours:.2f}", f"{mine:.2f}", f"{price:.1f} %", spread, f"≤ {GOAL_PERCENT:.0f} %", f"{cpu:.1f} %")
    return f"| {' | '.join(map(str, cells))} | {apart:.0e} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--worlds", default="1,2", help="numbers of ranks")
    parser.add_argument("--rounds", type=int, default=7, help="rounds, each with new processes; memory addresses change the speed of a process by a few percent")
    parser.add_argument("--pairs", type=int, default=4, help="pairs of turns in a round")
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of a turn")
    options = parser.parse_args()
    print("| model | W | compared with | PyTorch, ms/step | roundhouse, ms/step | overhead | medians of the rounds | goal | overhead in CPU time | losses differ by |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for name in options.models.split(","):
        for world in map(int, options.worlds.split(",")):
            # One rank can train without DDP.
            for is_bare in (False, True) if world == 1 else (False,):
                rounds = []
                for number in range(options.rounds):
                    print(f"{name}, {world} ranks, round {number + 1} of {options.rounds}", file=sys.stderr)
                    rounds.append(measure(name, world, is_bare, options))
                print(row(name, world, is_bare, rounds), flush=True)


if __name__ == "__main__":
    main()
