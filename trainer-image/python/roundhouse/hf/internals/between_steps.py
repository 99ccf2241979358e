"""What a Trainer does between steps: it logs, saves and evaluates. The ranks wait for each
other."""

from __future__ import annotations

import math
from contextlib import closing
from typing import TYPE_CHECKING, Any

from transformers.trainer_utils import EvalLoopOutput

from ...integration.loaders import batches_of, is_sequential
from ...integration.steps import Steps
from ...integration.waiting import may_lose_peer, waits
from ...job import Job
from ...replica import current
from .. import refusals
from ..evaluation import BatchLosses, adopt, arguments_of_evaluation
from .libraries import keeps_metrics

if TYPE_CHECKING:
    from transformers import Trainer as Host
else:
    Host = object


class BetweenSteps(Host):
    """A part of :class:`~roundhouse.hf.Elastic`."""

    job: Job | None
    # Known while the loop of the training runs.
    _steps: Steps | None

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        if self._steps is not None and self._steps.is_behind:
            # The other ranks have done it already, and this one got their numbers.
            self.control.should_evaluate = self.control.should_save = False
        refusals.refuse_end_of_epoch(self.control)
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _waits(self) -> Any:
        return waits(None if self._steps is None else self.job, float(self.args.ddp_timeout))

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        with self._waits():
            super()._save_checkpoint(*args, **kwargs)

    def _save_rng_state(self, output_dir: str) -> None:
        # It makes the directory also where rank 0 alone writes.
        if self.args.should_save:
            super()._save_rng_state(output_dir)

    def evaluation_loop(self, dataloader: Any, description: str, *args: Any, **kwargs: Any) -> Any:
        if self._steps is None or self.job is None:
            return super().evaluation_loop(dataloader, description, *args, **kwargs)
        only_loss, ignored, prefix = arguments_of_evaluation(*args, **kwargs)
        only_loss = self.args.prediction_loss_only if only_loss is None else only_loss
        output: Any = None
        if only_loss and is_sequential(dataloader) and not keeps_metrics(self):
            output = self._losses(self.job, dataloader, ignored, prefix)
            self._report(self.job, output, prefix)
            return output
        with self._waits():
            # Metrics need all predictions, so each rank computes all of them.
            output = super().evaluation_loop(dataloader, description, *args, **kwargs)
        with may_lose_peer():
            adopt(output.metrics, self.job._generations.data_place[0], self.job.sum)
            self._report(self.job, output, prefix)
        return output

    def _report(self, job: Job, output: Any, prefix: str) -> None:
        """Lets the job show the result."""
        found = {name: output.metrics.get(f"{prefix}_{name}") for name in ("loss", "accuracy", "perplexity")}
        finite = {name: float(value) for name, value in found.items() if isinstance(value, (int, float)) and math.isfinite(value)}
        if "loss" in finite and output.num_samples:
            job._loops.evaluated(num_samples=output.num_samples, **finite)

    def _losses(self, job: Job, dataloader: Any, ignored: Any, prefix: str) -> Any:
        """The loss of an evaluation set. Each rank computes a part of its batches."""
        batches = list(dataloader.batch_sampler)
        losses = BatchLosses(len(batches))

        def compute(indices: range, num_passes: int = 0) -> None:
            # Processes that share a model wait for each other in each pass.
            spare = [0] * (num_passes - len(indices))
            with closing(batches_of(dataloader, [batches[index] for index in (*indices, *spare)])) as loaded:
                for index, inputs in zip([*indices, *(None for _ in spare)], loaded):
                    loss, _, _ = self.prediction_step(self.model, inputs, True, ignore_keys=ignored)
                    if index is not None:
                        losses.add(index, None if loss is None else float(loss), len(batches[index]))
                        self.callback_handler.on_prediction_step(self.args, self.state, self.control)

        self.model.eval()
        self.callback_handler.eval_dataloader = dataloader
        replica, (rank, world_size) = current(), job._generations.data_place
        with self._waits():
            compute(losses.part(rank, world_size), losses.num_passes(rank, replica, world_size))
        with may_lose_peer():
            losses.share(job.sum)
        if replica is not None and not losses.is_shared:
            losses.share_known(lambda values: replica.sum(replica.counted(values)))
        for rest in losses.missing():
            compute(rest)  # A rank was lost, so this one computes the batches of all.
        loss = losses.mean(skips_infinite=self.args.logging_nan_inf_filter)
        metrics = {} if loss is None else {f"{prefix}_loss": loss}
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=len(dataloader.dataset))
