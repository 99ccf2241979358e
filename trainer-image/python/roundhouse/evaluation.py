"""Evaluations between steps. If a generation fails during an evaluation, the next generation
repeats it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset

from ._native import Process, SampleSchedule
from .data import Worker, all_batches
from .errors import ConfigError, Diverged
from .generations import Generations, Place
from .replica import Replica, current
from .seeding import mixed, seed_all
from .sharded import reshard
from .slices import owned

# The results of a function are reported under these names.
_REPORTED = ("accuracy", "top5", "perplexity")
# Under each name one sum, or those of all slices.
Sums = dict[str, list[float]]


@dataclass(frozen=True)
class Evaluation:
    """An evaluation for ``job.steps(..., evaluation=...)``. It runs every ``every_epochs`` epochs,
    or every ``every_steps`` steps if that is given, and after the last step.

    The job calls ``function(batch)`` without gradients, with the modules of the state in evaluation
    mode, for the collated batches of this rank's part of ``dataset``. The function returns **sums**
    over the samples of the batch, such as ``{"loss": ..., "accuracy": number of correct samples}``,
    and must call no collective but those of the model. A process of a replica that does not know
    the sums, such as the first stage of a pipeline, returns None for each batch. The means over the
    whole data set are the same on all ranks. ``loss`` is required; ``accuracy`` and ``top5`` are
    reported, too. The job calls ``then(means)`` on all ranks of the generation before the
    evaluation counts as done. A rank that lost its peers right before receives the state of a rank
    that has called it, so keep everything that ``then`` changes in ``rh.join(state=...)``.
    """

    dataset: Any
    function: Callable[[Any], dict[str, float] | None]
    batch_size: int = 256
    every_epochs: int = 1
    then: Callable[[dict[str, float]], None] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    every_steps: int | None = None

    def __post_init__(self) -> None:
        if self.every_steps is not None and self.every_steps < 1:
            raise ConfigError(f"rh.Evaluation: every_steps is {self.every_steps}; give at least 1, or leave it out")

    def is_due(self, steps: int, samples: int, evaluated: int, sampler: Any) -> bool:
        """Whether an evaluation is due after this number of committed steps and samples.
        ``evaluated``: committed samples at the last evaluation."""
        if samples == 0 or samples == evaluated:
            return False
        if self.every_steps is not None and steps % self.every_steps == 0:
            return True
        epochs, rest = divmod(samples, sampler.num_used)
        is_end = sampler.schedule.batch(0, samples) is None
        return is_end or (rest == 0 and self.every_epochs > 0 and epochs % self.every_epochs == 0)

    @torch.no_grad()
    def sums(self, rank: int, world_size: int, least: int = 0) -> dict[str, float] | None:
        """The sums over this rank's part of the data set. ``least``: the number of calls that the
        function gets at least, because those of a replica wait for each other."""
        return self._sums(*SampleSchedule.part(0, len(self.dataset), rank, world_size), least)

    def _sums(self, start: int, end: int, least: int) -> dict[str, float] | None:
        totals = self._totals(start, end)
        for _ in range(least - self._num_calls(start, end)):
            self._called(self._loader(0, 1))  # A sample that does not count.
        return totals

    @torch.no_grad()
    def sums_of_slices(self, slices: int, rank: int, world_size: int, part: int, num_parts: int, seed: int) -> Sums | None:
        """The sums over each slice of the data set; 0 for those of other ranks. A replica divides a
        slice into ``num_parts``."""
        number = min(slices, len(self.dataset))
        found: dict[int, dict[str, float] | None] = {}
        for index in range(*owned(number, rank, world_size)):
            seed_all(mixed(seed, index))
            cuts = [SampleSchedule.part(*SampleSchedule.part(0, len(self.dataset), index, number), one, num_parts) for one in range(num_parts)]
            found[index * num_parts + part] = self._sums(*cuts[part], max(self._num_calls(*cut) for cut in cuts))
        names = next(iter(found.values())) if found else self._called(self._loader(0, 1))
        known = {place: sums for place, sums in found.items() if sums is not None}
        if names is None or len(known) < len(found):
            return None
        return {name: [known[place][name] if place in known else 0.0 for place in range(number * num_parts)] for name in names}

    def num_calls(self, rank: int, world_size: int) -> int:
        """Number of calls of the function for a rank's part of the data set."""
        return self._num_calls(*SampleSchedule.part(0, len(self.dataset), rank, world_size))

    def _num_calls(self, start: int, end: int) -> int:
        return max(len(self._loader(start, end)), 1)

    def _totals(self, start: int, end: int) -> dict[str, float] | None:
        totals: dict[str, float] | None = None
        if start == end:
            # This rank needs the names of the other ranks: get them from a sample that does not
            # count.
            sums = self._called(self._loader(0, 1))
            return None if sums is None else dict.fromkeys(sums, 0.0)
        with closing(all_batches(self._loader(start, end))) as batches:
            for index, batch in enumerate(batches):
                sums = self._called([batch])
                if index == 0:
                    totals = None if sums is None else {}
                if (sums is None) is not (totals is None):
                    raise ConfigError("the function of rh.Evaluation has returned None for some batches and sums for others")
                for name, value in (sums or {}).items():
                    assert totals is not None
                    totals[name] = totals.get(name, 0.0) + float(value)
        return totals

    def _loader(self, start: int, end: int) -> Any:
        options = dict(self.options)
        if options.get("num_workers"):
            options["worker_init_fn"] = Worker(options.get("worker_init_fn"))
        return DataLoader(Subset(self.dataset, range(start, end)), batch_size=self.batch_size, **options)

    def _called(self, batches: Any) -> dict[str, float] | None:
        sums = self.function(next(iter(batches)))
        if sums is None and current() is not None:
            return None
        if not isinstance(sums, dict) or "loss" not in sums:
            raise ConfigError(
                'the function of rh.Evaluation has to return a dict of sums with "loss", such as {"loss": loss.item() * len(x)}'
            )
        return sums


def all_of(evaluation: Evaluation | Sequence[Evaluation] | None) -> list[Evaluation]:
    """The evaluations of ``job.steps`` as a list. All must be due after the same steps; the job
    reports one of them."""
    if evaluation is None:
        return []
    several = evaluation if isinstance(evaluation, (list, tuple)) else [evaluation]
    given = [one for one in several if isinstance(one, Evaluation)]
    if len(given) < len(several):
        raise ConfigError(f"job.steps: evaluation is {evaluation!r}; give rh.Evaluation(...), or several of them in a list")
    if len({(one.every_epochs, one.every_steps) for one in given}) > 1:
        raise ConfigError("job.steps: all evaluations of a list need the same every_epochs and every_steps")
    return given


def evaluate(
    evaluations: Sequence[Evaluation],
    process: Process,
    modules: Sequence[torch.nn.Module],
    place: Place,
    generations: Generations,
) -> None:
    """Evaluates the state on all ranks. The next generation repeats an evaluation that fails. The
    job reports the first one."""
    process.begin_evaluation(counts=any(one.then is not None for one in evaluations))
    were_training = [(module, module.training) for own in modules for module in own.modules()]
    for own in modules:
        own.eval()
    try:
        sums = [_sums(one, generations) for one in evaluations]
    finally:
        for module, was_training in were_training:
            module.training = was_training
    reshard(modules)
    for values in sums:
        if not all(math.isfinite(value) for own in (values or {}).values() for value in own):
            raise Diverged(f"the evaluation after step {place.steps} is not finite on rank {place.rank}: {values}")
    counted = [_counted(values, generations.replica) for values in sums]
    names = [(index, name, len(values[name])) for index, values in enumerate(counted) for name in sorted(values)]
    # One sum for all evaluations: no rank calls a `then` before each rank has all sums.
    total = process.sum([value for index, name, _ in names for value in counted[index][name]])
    if not generations.confirm(total is not None):
        return
    assert total is not None
    if not all(map(math.isfinite, total)):
        raise Diverged(f"the evaluation after step {place.steps} is not finite: the sums over all ranks are {total}")
    means: list[dict[str, float]] = [{} for _ in evaluations]
    numbers = iter(total)
    for index, name, length in names:
        # A slice is computed by one rank, so its number is exact, and so is the order of this sum.
        means[index][name] = sum(itertools.islice(numbers, length)) / len(evaluations[index].dataset)
    for evaluation, found in zip(evaluations, means):
        if evaluation.then is not None:
            evaluation.then(found)
    first = means[0]
    is_over = process.end_evaluation(num_samples=len(evaluations[0].dataset), loss=first["loss"], **_reported(first))
    generations.confirm(is_over)


def _counted(sums: Sums | None, replica: Replica | None) -> Sums:
    """What a process adds to the sums over all ranks. Of the processes of a replica with the same
    samples one counts: the last one that has sums. Others add 0 under the same names."""
    if replica is None or replica.num_data == replica.size:
        if sums is None:
            raise ConfigError("the function of rh.Evaluation has returned None in a process that alone has these samples")
        return sums
    lengths = replica.gather("evaluation", None if sums is None else {name: len(sums[name]) for name in sorted(sums)})
    sources = replica.sources([float(known is not None) for known in lengths])
    if not sources:
        raise ConfigError(
            "the function of rh.Evaluation has returned None in all processes with the same samples: return the sums in the process "
            "that has computed them, such as the last stage of a pipeline"
        )
    if sources[-1] == replica.shard and sums is not None:
        return sums
    return {name: [0.0] * length for name, length in lengths[sources[-1]].items()}


def _sums(evaluation: Evaluation, generations: Generations) -> Sums | None:
    """This rank's sums."""
    sampler = generations.sampler
    if sampler is None or sampler.slices is None:
        share = _share(evaluation, generations)
        return None if share is None else {name: [value] for name, value in share.items()}
    (rank, world_size), num_parts = generations.data_place, sampler.num_parts
    # A slice draws the same numbers on each rank.
    seed = mixed(sampler.seed, generations.place.steps, 3)
    return evaluation.sums_of_slices(
        sampler.slices, rank // num_parts, world_size // num_parts, rank % num_parts, num_parts, seed
    )


def _share(evaluation: Evaluation, generations: Generations) -> dict[str, float] | None:
    (rank, world_size), replica = generations.data_place, generations.replica
    if replica is None:
        return evaluation.sums(rank, world_size)
    calls = [evaluation.num_calls(other, world_size) for other in replica.data_ranks(rank)]
    return evaluation.sums(rank, world_size, max(calls))


def _reported(means: dict[str, float]) -> dict[str, float]:
    """The means that have their own metric."""
    return {name: means[name] for name in _REPORTED if name in means}
