"""What a script with accelerate does around steps: it evaluates, exchanges numbers, waits, reports
and saves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import ConfigError
from ...integration.membership import Membership
from ...integration.waiting import all_begin, waits
from ...job import Job
from .. import refusals_of_loop as refusals
from ..own_loop import OwnLoop, Stage
from .accelerated import CommittedScheduler, CommittingOptimizer, EvaluationLoader, TrainingLoader

if TYPE_CHECKING:
    from accelerate import Accelerator as Host
else:
    Host = object


class AroundSteps(Host):
    """A part of :class:`~roundhouse.hf.Accelerator`."""

    _job: Job | None
    # Known after ``prepare``.
    _loop: OwnLoop
    _membership: Membership
    _net: Any
    _patience: float
    # Whether the script has read the counters of the job, and begun its loop.
    _were_counters_read: bool
    _has_begun = False
    _evaluates = False
    # The wait that ends with the next step, if there is one.
    _wait: Any = None
    # The arguments of ``init_trackers``.
    _trackers_of_script: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    @property
    def job(self) -> Job:
        """The job; known after ``prepare``."""
        if self._job is None:
            raise ConfigError("roundhouse.hf: accelerator.job, steps_done or epochs_done before accelerator.prepare, which joins the job")
        return self._job

    def _begin_epoch(self) -> None:
        refusals.refuse_unread_counters(self._were_counters_read)
        self._has_begun = True

    def _end_epoch(self) -> None:
        # What the script does between epochs takes the ranks differently long.
        self._begin_wait()

    def _evaluation(self, loader: Any) -> EvaluationLoader:
        return EvaluationLoader(loader, self._begin_evaluation)

    def _begin_evaluation(self) -> None:
        is_before = not self._has_begun and self.job.steps_done < self._loop.total
        refusals.refuse_evaluation(is_before=is_before, is_in_step=self._loop.is_in_step)
        begins, self._evaluates = not self._evaluates, True
        if begins and self._may_wait() and all_begin(self.job, f"evaluate after {self._loop.counted}"):
            self._begin_wait()

    def _may_wait(self) -> bool:
        # A rank that has missed a step is behind the wait of the others.
        return self._wait is None and self._loop.stage is Stage.COMMITTED and not self._membership.is_over

    def _begin_wait(self) -> None:
        if self._may_wait():
            self._wait = waits(self.job, self._patience)
            self._wait.__enter__()

    def _end_wait(self) -> None:
        self._evaluates = False
        wait, self._wait = self._wait, None
        if wait is not None:
            wait.__exit__(None, None, None)

    def wait_for_everyone(self) -> None:
        """Waits until all ranks have called it. Before ``prepare`` and within a step it does
        nothing. After the last step it completes the training: if rank 0 was lost meanwhile, there
        is a new one afterwards."""
        if self._job is None or self._membership.is_over:
            return
        if self.job.steps_done == self._loop.total:
            self._complete()
        elif self._loop.stage is Stage.COMMITTED:
            evaluates = self._evaluates
            self._begin_wait()
            self._end_wait()
            self._evaluates = evaluates

    def gather(self, tensor: Any) -> Any:
        """Returns what it gets, in an evaluation: each rank evaluates the whole data set."""
        self._check_gather("gather")
        return super().gather(tensor)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """See :meth:`gather`."""
        self._check_gather("gather_for_metrics")
        return super().gather_for_metrics(input_data, use_gather_object)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """See :meth:`gather`."""
        self._check_gather("reduce")
        return super().reduce(tensor, reduction, scale)

    def pad_across_processes(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """See :meth:`gather`."""
        self._check_gather("pad_across_processes")
        return super().pad_across_processes(tensor, *args, **kwargs)

    def _check_gather(self, name: str) -> None:
        if self._job is not None:
            refusals.refuse_gather(name, self._evaluates)

    # Rank 0.

    def on_main_process(self, function: Any = None) -> Any:
        if function is None:
            return self.on_main_process

        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if self.is_main_process else None

        return call

    def init_trackers(self, *args: Any, **kwargs: Any) -> None:
        """Initializes the trackers of rank 0. If it is lost, those of the next rank 0 begin a
        further run."""
        self._trackers_of_script = args, kwargs
        if self.is_main_process:
            super().init_trackers(*args, **kwargs)

    def log(self, *args: Any, **kwargs: Any) -> None:
        if self.is_main_process:
            super().log(*args, **kwargs)

    def unwrap_model(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        inner = model.module if self._job is not None and model is self._net else model
        return super().unwrap_model(inner, *args, **kwargs)

    # What a job cannot follow.

    def register_for_checkpointing(self, *objects: Any) -> None:
        new = [one for one in objects if not isinstance(one, (CommittedScheduler, CommittingOptimizer))]
        if self._job is not None and new:
            refusals.refuse_call("register_for_checkpointing")
        super().register_for_checkpointing(*new)

    def save_state(self, *_: Any, **__: Any) -> Any:
        refusals.refuse_call("save_state")

    def load_state(self, *_: Any, **__: Any) -> Any:
        refusals.refuse_call("load_state")

    def clip_grad_value_(self, *_: Any, **__: Any) -> Any:
        refusals.refuse_call("clip_grad_value_")

    def set_trigger(self) -> Any:
        refusals.refuse_call("set_trigger")

    def check_trigger(self) -> Any:
        refusals.refuse_call("check_trigger")

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        if isinstance(dataloader, TrainingLoader):
            refusals.refuse_call("skip_first_batches")
        return super().skip_first_batches(dataloader, num_batches)
