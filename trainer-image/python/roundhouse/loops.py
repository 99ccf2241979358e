"""The loops over the steps, and their ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import torch

from ._native import Process
from .data import Batch, Loader
from .errors import NotCommitted, PeerLost
from .evaluation import Evaluation, evaluate
from .generations import Generations
from .open_step import OpenStep
from .sampler import Sampler, Step
from .seeding import mixed, seed_all
from .slice_checks import check_slices


Item = TypeVar("Item")


class Loop(Generic[Item]):
    """The steps of a ``for``. Each ``for`` has its own iterator; releasing the iterator means
    leaving the loop.

    The length, for a progress bar, is the number of all steps before the first ``for``, because a
    process that joins or continues from a checkpoint does not know the number of committed steps
    yet. A dropped step is yielded twice.
    """

    def __init__(self, begin: Callable[[], Iterator[Item]], to_come: Callable[[], int]):
        self._begin = begin
        self._to_come = to_come

    def __len__(self) -> int:
        return self._to_come()

    def __iter__(self) -> Iterator[Item]:
        return self._begin()


class Loops:
    """The state that the loops of one job share."""

    def __init__(
        self,
        process: Process,
        generations: Generations,
        open_step: OpenStep,
        modules: Sequence[torch.nn.Module],
        *,
        seeds: bool,
    ):
        self._process = process
        self._generations = generations
        self._open = open_step
        self._modules = modules
        self._seeds = seeds
        self.is_finished = False
        # Whether the script has left the loop before the last step.
        self.has_left = False
        # Whether it has left it between the slices of a step.
        self._has_left_step = False
        # An evaluation that the script has made itself, and its generation.
        self._evaluated: tuple[int, dict[str, Any]] | None = None

    def batches(
        self, dataset: Any, sampler: Sampler, evaluations: Sequence[Evaluation], options: dict[str, Any]
    ) -> Iterator[Batch]:
        """The iterator of :meth:`Job.steps <roundhouse.job.Job.steps>`."""
        loader = Loader(dataset, sampler, seeds=self._seeds, **options)
        try:
            for step in self._steps(sampler, evaluations):
                data = loader.load(step, self._generations.place.samples)
                # Seed now and not earlier, because reading in this process has drawn random
                # numbers.
                self._seed(step)
                self._open.loaded()
                yield Batch(step, data, self._open)
        except GeneratorExit:
            loader.close()
            raise
        # Do not do this after an error, which ends the process and its workers: ending workers in
        # order may take seconds.
        loader.close()

    def indices(self, sampler: Sampler, evaluations: Sequence[Evaluation]) -> Iterator[Step]:
        """The iterator of :meth:`Job.indices <roundhouse.job.Job.indices>`."""
        for step in self._steps(sampler, evaluations):
            self._seed(step)
            yield step

    def _steps(self, sampler: Sampler, evaluations: Sequence[Evaluation]) -> Iterator[Step]:
        generations = self._generations
        self._check_left()
        if sampler.slices is not None:
            check_slices(self._modules, generations.replica, generations.gradients, is_manual=self._open.is_manual, seeds=self._seeds)
        generations.prepare(sampler, self._modules, self._open.optimizers)
        while True:
            is_due = generations.advance()
            if is_due and self.is_finished:
                raise NotCommitted("a loop over job.steps after job.save_result: the training that was left is complete")
            place = generations.place
            if evaluations and evaluations[0].is_due(place.steps, place.samples, self._process.evaluated, sampler):
                # The state after `then` is not that of the step, whose evaluation is repeated.
                self._open.is_changed |= any(one.then is not None for one in evaluations)
                try:
                    evaluate(evaluations, self._process, self._modules, place, generations)
                except PeerLost as error:
                    # job.sum in `then` has lost the generation. A process that a newer generation
                    # has superseded ends.
                    if error.newer is not None:
                        raise
                    if generations.replica is not None:
                        generations.replica.check()
                continue
            if self._reports(place.generation):
                continue
            if not is_due:
                if generations.confirm(self._process.finish()):
                    break
                continue
            for step in sampler.passes(generations.next_step()):
                yield from self._pass(step, sampler)
                if not self._open.is_between_slices:
                    break
        self.is_finished = True

    def _pass(self, step: Step, sampler: Sampler) -> Iterator[Step]:
        """Yields a step or a slice to the body of the loop, which must commit it."""
        self._open.begin(step, sampler)
        self.has_left = False
        try:
            self._open.is_in_body = True
            yield step
        except GeneratorExit:
            self.has_left = True
            # A newer loop may have begun a step before this iterator was released.
            if self._open.is_incomplete and self._open.begun is step:
                self._has_left_step |= self._open.has_slices
                # The training is complete after the last committed step.
                self._open.forget()
            raise
        finally:
            self._open.is_in_body = False
        # The next step or slice begins with the state as the script has left it.
        self._open.is_changed = False
        if self._generations.replica is not None:
            self._generations.replica.check()
        if self._open.step is step:
            raise NotCommitted(
                f"step {step.number}: the body of the loop has ended without job.commit(loss, optimizer); each step needs it"
            )

    def _check_left(self) -> None:
        """Raises NotCommitted if the script has left a loop between the slices of a step: another
        rank, which has fewer slices, may have committed the step."""
        if self._has_left_step or self._open.has_slices:
            raise NotCommitted(
                "the script has left the loop between two slices of a step, and each rank has others: leave it only after a "
                "job.commit that returned True, or before the first commit of a step"
            )

    def evaluated(self, **result: Any) -> None:
        """Lets the job report an evaluation that the script has made itself in the body of a step.
        All ranks must call it, with the same numbers. The first result of a step counts, and none
        if a generation forms before the next step."""
        if self._evaluated is None:
            self._evaluated = (self._generations.place.generation, result)

    def _reports(self, generation: int) -> bool:
        """Reports the last evaluation of the script, if there is one. Its end is a boundary like
        the end of a step."""
        evaluated, self._evaluated = self._evaluated, None
        if evaluated is None or evaluated[0] != generation:
            return False
        self._generations.confirm(self._process.end_evaluation(**evaluated[1]))
        return True

    def _seed(self, step: Step) -> None:
        if self._seeds and self._generations.sampler is not None:
            seed_all(mixed(self._generations.sampler.seed, step.number, step.rank if step.slice is None else step.slice, 1))

    def finish(self) -> None:
        """Completes the training, also if all ranks have left the loop at the same step."""
        self._check_left()
        # After the loop the script may change its state.
        self._open.is_changed = True
        while not self.is_finished:
            self._generations.meet_at_end()
            self.is_finished = self._generations.confirm(self._process.finish())
            if not self.is_finished and self._generations.advance():
                raise PeerLost("not all ranks have left the loop at the same step, or one was lost meanwhile")

    def finish_again(self) -> None:
        """Must be called if the generation has failed after the last step. All ranks of the next
        generation do the same, whatever they had done before."""
        while True:
            if self._generations.advance():
                raise PeerLost("the state was lost with all ranks that had it: another start continues from a checkpoint")
            if self._generations.confirm(self._process.finish()):
                return
