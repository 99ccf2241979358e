"""What a Trainer does between steps: it logs and saves, and the ranks wait for each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...integration.steps import Steps
from ...integration.waiting import waits
from ...job import Job
from .. import refusals

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
