"""The evaluations of a Trainer: the ranks divide the batches."""

from __future__ import annotations

import math
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Any

from transformers.trainer_utils import EvalLoopOutput

from ...integration.steps import Steps
from ...integration.waiting import Meeting
from ...job import Job
from ...replica import current
from ..evaluation import BatchLosses, adopt, arguments_of_evaluation, part_of
from ..predictions import Predictions
from .batch_passes import BatchPasses, can_divide, can_replay
from .libraries import keeps_metrics

if TYPE_CHECKING:
    from transformers import Trainer as Host
else:
    Host = object


class Evaluations(Host):
    """A part of :class:`~roundhouse.hf.Elastic`."""

    job: Job | None
    # Known while the loop of the training runs.
    _steps: Steps | None
    # While the library's loop reads known predictions.
    _replay: BatchPasses | None = None
    _is_evaluating = False

    def evaluation_loop(self, dataloader: Any, description: str, *args: Any, **kwargs: Any) -> Any:
        library = super().evaluation_loop
        if self._steps is None or self.job is None:
            return library(dataloader, description, *args, **kwargs)
        if self._is_evaluating:
            # compute_metrics evaluates. Each rank does so alone.
            with nullcontext() if self._replay is None else self._replay.suspended():
                return library(dataloader, description, *args, **kwargs)
        self._is_evaluating = True
        try:
            return self._evaluation(self.job, library, dataloader, description, *args, **kwargs)
        finally:
            self._is_evaluating = False

    def _evaluation(self, job: Job, library: Any, dataloader: Any, description: str, *args: Any, **kwargs: Any) -> Any:
        """The evaluation of all ranks, or of this one if it is behind or others do not evaluate."""
        only_loss, ignored, prefix = arguments_of_evaluation(*args, **kwargs)
        only_loss = self.args.prediction_loss_only if only_loss is None else only_loss
        # A pass must change nothing but its result.
        is_divisible = can_divide(library, dataloader) and not keeps_metrics(self)
        if only_loss and is_divisible:
            passes = BatchPasses(self, dataloader, True, ignored)
            meeting = self._meet(job, f"losses of {len(passes.batches)} batches")
            output = self._losses(job, meeting, passes, prefix)
        elif is_divisible and can_replay(self, dataloader):
            passes = BatchPasses(self, dataloader, False, ignored)
            meeting = self._meet(job, f"predictions for {len(passes.batches)} batches")
            known = self._predictions(job, meeting, passes)
            with meeting.waits(), passes.replayed(known) as replayed:
                self._replay = passes
                try:
                    output = library(replayed, description, *args, **kwargs)
                finally:
                    self._replay = None
        else:
            meeting = self._meet(job, "predictions of all")
            with meeting.waits():
                output = library(dataloader, description, *args, **kwargs)
        if meeting.is_together and not (only_loss and is_divisible):
            with meeting.exchanges():
                adopt(output.metrics, job._generations.data_place[0], job.sum)
        if meeting.is_together:
            self._report(job, output, prefix)
        return output

    def _begin_passes(self) -> None:
        """As the library does before its first pass. Some optimizers have other weights for
        evaluations."""
        self.model.eval()
        if callable(getattr(self.optimizer, "eval", None)):
            self.optimizer.eval()

    def _report(self, job: Job, output: Any, prefix: str) -> None:
        """Lets the job show the result."""
        found = {name: output.metrics.get(f"{prefix}_{name}") for name in ("loss", "accuracy", "perplexity")}
        finite = {name: float(value) for name, value in found.items() if isinstance(value, (int, float)) and math.isfinite(value)}
        if "loss" in finite and output.num_samples:
            job._loops.evaluated(num_samples=output.num_samples, **finite)

    def _losses(self, job: Job, meeting: Meeting, passes: BatchPasses, prefix: str) -> Any:
        """The loss of an evaluation set. Each rank computes a part of its batches, or all if the
        ranks are not together."""
        losses = BatchLosses(len(passes.batches))

        def compute(indices: range, num_passes: int = 0) -> None:
            for index, (loss, _, _) in passes.outcomes(indices, num_passes):
                if index is not None:
                    losses.add(index, None if loss is None else float(loss), len(passes.batches[index]))

        self._begin_passes()
        replica = current()
        if meeting.is_together:
            with meeting.waits():
                compute(*part_of(len(passes.batches), *job._generations.data_place, replica))
            if meeting.is_together:
                with meeting.exchanges():
                    losses.share(job.sum)
            if replica is not None and not losses.is_shared:
                losses.share_known(lambda values: replica.sum(replica.counted(values)))
        for rest in losses.missing():
            with meeting.waits():
                compute(rest)  # A rank was lost, has failed, or does not evaluate.
        loss = losses.mean(skips_infinite=self.args.logging_nan_inf_filter)
        metrics = {} if loss is None else {f"{prefix}_loss": loss}
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=passes.num_samples)

    def _predictions(self, job: Job, meeting: Meeting, passes: BatchPasses) -> Predictions:
        """The predictions for an evaluation set, of which each rank computes a part. If they are
        too large or a rank is lost, a rank knows only its own part. The processes of a replica then
        exchange their parts. If they cannot, they know no predictions. None are known if the ranks
        are not together."""
        known, replica = Predictions(len(passes.batches)), current()
        if not meeting.is_together or job._generations.data_place[1] == 1:
            return known
        self._begin_passes()
        part = part_of(len(passes.batches), *job._generations.data_place, replica)
        with meeting.waits(), closing(passes.outcomes(*part)) as outcomes:
            for index, outcome in outcomes:
                if index is not None:
                    known.add(index, outcome)
                # All processes of a replica make the same passes.
                if not (known.fits if replica is None else replica.all(known.fits)):
                    break
        if meeting.is_together:
            with meeting.exchanges():
                known.share(job.sum)
        if replica is not None and not known.is_shared:
            # All processes of the replica compute the same rest.
            known.share(lambda values: replica.sum(replica.counted(values)))
            if not known.is_shared:
                known.forget()
        return known
