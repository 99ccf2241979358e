"""Measures the time that the Python package adds to a step of the same training without it; prints
a Markdown table.

`--peers`: `ddp` and `bare` are a loop with DDP and with the bare model; with one rank the package
uses no DDP, so both are compared. `fsdp` is FSDP2 on two ranks, which are one replica, and HSDP on
four. `trainer` and `lightning` are the Trainers of transformers and Lightning.

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

from sides import PEERS, elastic, plain

GOAL_PERCENT = 3.0
# The largest relative difference of losses that sums in another order cause.
ROUNDING = 1e-4
MODELS = ("mlp", "resnet18")


def difference(left, right):
    """The largest relative difference of two lists of losses."""
    return max(abs(a - b) / max(abs(a), 1e-3) for a, b in zip(left, right, strict=True))


def measure(kind, name, world, options):
    """The pairs of turns (plain, elastic) of one round, and the largest difference of their
    losses."""
    with tempfile.TemporaryDirectory() as place, plain(kind, name, world) as theirs, elastic(kind, name, world, place) as ours:
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
        raise SystemExit(f"{name}, {kind}, {world} ranks: the losses differ by {apart:.1e}, so the sides do not train the same")
    return pairs[1:], apart


def percent(pairs, field):
    return [100 * (getattr(mine, field) / getattr(yours, field) - 1) for yours, mine in pairs]


def row(kind, name, world, rounds):
    pairs = [pair for of_round, _ in rounds for pair in of_round]
    yours, mine = (statistics.median(1e3 * pair[side].seconds for pair in pairs) for side in (0, 1))
    price, cpu = (statistics.median(percent(pairs, field)) for field in ("seconds", "cpu_seconds"))
    of_rounds = sorted(statistics.median(percent(of_round, "seconds")) for of_round, _ in rounds)
    apart = max(apart for _, apart in rounds)
    spread = f"{of_rounds[0]:.1f} to {of_rounds[-1]:.1f} %"
    beside = PEERS[kind].title(world)
    cells = (name, world, beside, f"{yours:.2f}", f"{mine:.2f}", f"{price:.1f} %", spread, f"≤ {GOAL_PERCENT:.0f} %", f"{cpu:.1f} %")
    return f"| {' | '.join(map(str, cells))} | {apart:.0e} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default="ddp,bare", help=f"some of {','.join(PEERS)}")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--worlds", default="1,2", help="numbers of ranks")
    parser.add_argument("--rounds", type=int, default=7, help="rounds, each with new processes; memory addresses change the speed of a process by a few percent")
    parser.add_argument("--pairs", type=int, default=4, help="pairs of turns in a round")
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of a turn")
    options = parser.parse_args()
    print("| model | W | compared with | without roundhouse, ms/step | with it, ms/step | overhead | medians of the rounds | goal | overhead in CPU time | losses differ by |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for name in options.models.split(","):
        for world in map(int, options.worlds.split(",")):
            for kind in options.peers.split(","):
                # Only one rank can train without DDP.
                if kind == "bare" and world > 1:
                    continue
                rounds = []
                for number in range(options.rounds):
                    print(f"{name}, {kind}, {world} ranks, round {number + 1} of {options.rounds}", file=sys.stderr)
                    rounds.append(measure(kind, name, world, options))
                print(row(kind, name, world, rounds), flush=True)


if __name__ == "__main__":
    main()
