"""What a Trainer does between steps: it logs and saves, and the ranks wait for each other."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import transformers.trainer
from transformers.trainer_utils import rotate_checkpoints

from ...integration.steps import Steps
from ...integration.waiting import Meeting, all_begin
from ...job import Job
from .. import refusals
from ..carried import Exported
from .libraries import replaced

if TYPE_CHECKING:
    from transformers import Trainer as Host
else:
    Host = object

# All ranks come to what the arguments schedule. They come to it late if rank 0 sets up a tracker
# for its log before it.
_SECONDS_TO_BEGIN = 3.0
_SECONDS_TO_BEGIN_SCHEDULED = 60.0


class BetweenSteps(Host):
    """A part of :class:`~roundhouse.hf.Elastic`."""

    job: Job | None
    # Known while the loop of the training runs.
    _steps: Steps | None

    # The last export of a best model that is complete.
    _exported: Exported
    # Whether a schedule, and not a callback, lets this rank save and evaluate.
    _is_scheduled = False
    # How often this rank came to each kind of work after each step.
    _meetings: Counter[str]

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        if self._steps is not None and self._steps.is_behind:
            # The other ranks have done it already, and this one got their numbers.
            self.control.should_evaluate = self.control.should_save = False
        refusals.refuse_end_of_epoch(self.control)
        self._is_scheduled = True
        try:
            super()._maybe_log_save_evaluate(*args, **kwargs)
        finally:
            self._is_scheduled = False

    def _meet(self, job: Job, work: str) -> Meeting:
        """Begins work after a step, with all ranks that come to the same. ``work`` names all that
        their collectives depend on. A rank that is behind does it alone."""
        place = f"{'scheduled' if self._is_scheduled else 'called'} {work} after {job.steps_done}"
        self._meetings[place] += 1
        seconds = _SECONDS_TO_BEGIN_SCHEDULED if self._is_scheduled else _SECONDS_TO_BEGIN
        is_behind = self._steps is None or self._steps.is_behind
        is_together = not is_behind and all_begin(job, f"{place}, {self._meetings[place]}", seconds)
        return Meeting(job, float(self.args.ddp_timeout), is_together=is_together)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        if self._steps is None or self.job is None:
            super()._save_checkpoint(*args, **kwargs)
            return
        meeting, state = self._meet(self.job, "save"), self.state
        begins, best = meeting.is_together, state.best_global_step
        is_best = best == state.global_step
        state.best_model_checkpoint = self._best_model()
        if not (is_best and self.args.should_save):
            # The library would take any directory with the name of the best step: an incomplete
            # one, or that of an earlier job.
            state.best_global_step = self._exported.step
        try:
            # The earlier best model is deleted when all ranks know the new one.
            with meeting.waits(), replaced(transformers.trainer, rotate_checkpoints=lambda **_: None):
                super()._save_checkpoint(*args, **kwargs)
                if is_best and begins and self.args.should_save:
                    self._exported.step = best
        finally:
            state.best_global_step = best
        if meeting.is_together:
            if is_best:
                self._exported.step = best
            with meeting.exchanges():
                is_first = self.job._generations.data_place[0] == 0
                [step] = self.job.sum([float(self._exported.step or 0) if is_first else 0.0])
                self._exported.step = int(step) or None
        state.best_model_checkpoint = kept = self._best_model()
        # If a rank was lost, others may not know this export yet, and need the one before it.
        if meeting.is_together or not begins:
            with meeting.waits():
                if self.args.should_save:
                    rotate_checkpoints(self.args.output_dir, self.args.save_total_limit, kept, use_mtime=True)

    def _best_model(self) -> str | None:
        """The directory of the best model, which is complete."""
        step = self._exported.step
        return None if step is None else os.path.join(self.args.output_dir, f"checkpoint-{step}")

    def _save_rng_state(self, output_dir: str) -> None:
        # It makes the directory also where rank 0 alone writes.
        if self.args.should_save:
            super()._save_rng_state(output_dir)
