"""What the tests of libraries share (tests_hf, tests_lightning, tests_trackers): the same script in
one process without a job, and results of both."""

import functools
import json
import os

# Tolerance for sums in another order, in 64 bits.
ROUNDING = 1e-12
# AdamW enlarges rounding where a gradient is almost 0. How much depends on the weights at the
# beginning, and so on the version of transformers: it is 1.2e-12 with 5.5.0.
ROUNDING_OF_ADAMW = 1e-11


def environment():
    """The environment of a process that no agent has started."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def plain_results(starter, directories, kind):
    """A function that runs a script with some features in one process, with the classes of the
    library itself. It returns the result as ``kind``, and runs each script once per features."""

    @functools.cache
    def result(script, *uses):
        directory = directories.mktemp("plain")
        process = starter.start([script, directory / "out", "plain", *uses], environment(), directory / "log")
        assert process.wait(240) == 0, (directory / "log").read_text()
        return kind(directory / "out")

    return result


class Result:
    """What the ranks of a script have written."""

    def __init__(self, directory):
        import torch

        self.directory = directory
        self.weights = torch.load(directory / "weights.pt")
        self.ranks = {int(file.stem.split("-")[1]): json.loads(file.read_text()) for file in directory.glob("rank-*.json")}

    def log(self, rank):
        """The steps that a rank has logged, with their entries. Each library has its own form."""
        raise NotImplementedError

    def logged(self, name, rank=0):
        """The values of an entry of the log, by step."""
        pairs = [(step, entries[name]) for step, entries in self.log(rank) if name in entries]
        assert len(dict(pairs)) == len(pairs), f"a step was logged twice: {pairs}"
        return dict(pairs)


def difference(left, right):
    """The largest difference of a tensor, relative to its largest weight."""
    pairs = [(left.weights[name], right.weights[name]) for name in left.weights]
    return max(float((one - other).abs().max() / one.abs().max()) for one, other in pairs)
