"""The interface of a script to its job: the object that ``rh.join`` returns."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from ._native import Process
from .data import Batch
from .ending import explained, write_result
from .errors import ConfigError, Left, NotCommitted, PeerLost, words_of
from .evaluation import Evaluation, all_of
from .exports import Exports, copies_of, module_of_file
from .generations import Generations, Place
from .gradients import Model
from .links import Subject
from .loops import Loop, Loops
from .migration import is_without_group
from .open_step import OpenStep
from .replica import check_join, current
from .sampler import Sampler, Step
from .sharded import ShardedModel
from .state import Row
from .streams import Shard
from .whole_state import whole_state

# A week, in seconds.
_MOST_PATIENCE = 604_800.0
# Seconds that the process of rank 0 waits for its exports: after the training, and if it was asked
# to leave, when the agent soon ends it.
_MOST_AT_END, _MOST_AT_LEAVE = 600.0, 5.0
# Options of DDP that the job sets or forbids. With the last two DDP sums gradients that the package
# does not see.
_REFUSED_BY_MODEL = {
    "process_group",
    "broadcast_buffers",
    "forward_sync_buffers",
    "init_sync",
    "delay_all_reduce_named_params",
    "param_to_hook_all_reduce",
}


class Job:
    """The job of this process; ``rh.join`` returns it."""

    def __init__(
        self,
        process: Process,
        state: dict[str, Any],
        device: torch.device,
        *,
        is_manual: bool,
        seeds: bool,
        ended: Callable[[], None],
    ):
        self._process = process
        # A child process that the script forks is not a member.
        self._pid = os.getpid()
        self._device = device
        self._replica = current()
        check_join(process.local_world_size)
        if self._replica is not None and is_manual:
            raise ConfigError(
                'rh.join(gradients="manual") with rh.replica_mesh(): the job sums the gradients of a sharded model over the replicas; '
                "leave out gradients"
            )
        row = Row(state, self._replica)
        self._modules = [entry for entry in state.values() if isinstance(entry, torch.nn.Module)]
        self._generations = Generations(process, row, device, self._replica)
        self._open = OpenStep(process, row, self._generations, is_manual=is_manual, seeds=seeds)
        self._loops = Loops(process, self._generations, self._open, self._modules, seeds=seeds)
        self._exports = Exports()
        self._run_id = os.environ.get("ROUNDHOUSE_JOB_UID") if process.has_agent else f"alone-{uuid.uuid4()}"
        # Called at the end of the membership.
        self._ended = ended
        if process.has_agent:
            torch.set_num_threads(process.num_threads())

    # Properties and methods for the script.

    @property
    def rank(self) -> int:
        """Rank in the current generation, from 0. In a worker of a job it is known when the loop
        begins."""
        return self._known("rank").rank

    @property
    def world_size(self) -> int:
        """Number of ranks of the current generation; known at the same time as :attr:`rank`."""
        return self._known("world_size").world_size

    @property
    def generation(self) -> int:
        """Number of the current generation; 0 before the first generation."""
        return self._generations.place.generation

    @property
    def steps_done(self) -> int:
        """Number of committed steps."""
        return self._generations.steps_done

    @property
    def run_id(self) -> str:
        """An id for the run of a tracker, such as W&B: the UID of the job. All ranks have the same
        one, from ``rh.join`` on, also after they start again. A process that trains alone has a new
        one at each start."""
        if not self._run_id:
            raise ConfigError("job.run_id: ROUNDHOUSE_JOB_UID is not set: start the script with the environment of the agent")
        return self._run_id

    @property
    def loss(self) -> float | None:
        """The loss of the last committed step of this process: the mean over the samples of the
        global batch, or over their weight. It is the same on all ranks, and None before the first
        step. Reading it costs nothing."""
        return None if self._open.outcome is None else self._open.outcome.loss

    @property
    def grad_norm(self) -> float | None:
        """The norm of that step's gradients, before clipping and without the scale of a scaler.
        None before the first step."""
        return None if self._open.outcome is None else self._open.outcome.grad_norm

    @property
    def group(self) -> Any:
        """The process group of the current generation, for ``torch.distributed``; None with one
        process. Known at the same time as :attr:`rank`.

        Raises :class:`~roundhouse.errors.ConfigError` with :func:`rh.replica_mesh
        <roundhouse.replica_mesh>`: the default group is then that of the replica.
        """
        if self._replica is not None:
            raise ConfigError(
                "job.group with rh.replica_mesh(): PyTorch's default group and the mesh are the processes of this replica; sum numbers "
                "over all replicas with job.sum"
            )
        self._known("group")
        group = self._generations.group
        return None if group is None else group.process_group

    def _known(self, what: str) -> Place:
        """The place in the current generation. Before the first generation each process would seem
        to be rank 0."""
        place = self._generations.place
        if self._process.has_agent and place.generation == 0:
            raise ConfigError(
                f"job.{what} before the loop over job.steps: the ranks meet when the loop begins; ask for it in the loop, or in "
                "job.on_generation(callback), and see 'One process prepares the data' in docs/guides/python-recipes.md"
            )
        return place

    @property
    def device(self) -> torch.device:
        """The device of the modules."""
        return self._device

    def on_generation(self, callback: Callable[[Job], None]) -> None:
        """Calls ``callback(job)`` in each generation before its first step. Use it to rebuild
        objects that hold ``job.group``."""
        self._generations.callbacks.append(lambda: callback(self))

    def model(self, module: torch.nn.Module, **options: Any) -> Model | ShardedModel:
        """Wraps a module so that its backward pass sums the gradients over the ranks of the current
        generation.

        ``options`` are options of PyTorch's DDP, such as ``bucket_cap_mb``; the default of
        ``gradient_as_bucket_view`` is True. The same module gives the same object, so pass the
        options in the first call. With ``find_unused_parameters=True`` the error of a lost peer
        reaches the script in ``backward``: put the body of the loop in ``with batch:``, which
        repeats the step.
        """
        # The result of torch.compile has the parameters of its module.
        inner = getattr(module, "_orig_mod", module)
        if not any(inner is own or inner in own.modules() for own in self._modules):
            raise ConfigError("job.model: the module is not in rh.join(state=...), so new workers would not get its weights")
        refused = sorted(_REFUSED_BY_MODEL & options.keys())
        if refused:
            raise ConfigError(f"job.model: {', '.join(refused)}: the job decides that in each generation; leave it out")
        return self._generations.model(module, options)

    # Samples and steps.
    sampler = Sampler

    def shard_of(self, stream: Any, num_samples: int) -> Shard:
        """A stream of samples as a data set for :meth:`steps`, with
        ``job.sampler(..., in_order=True)``.

        ``stream``: an iterable that yields the same samples in the same order each time, such as an
        ``IterableDataset``, or a function of the epoch (from 0) that returns one. ``num_samples``:
        the number of samples that each epoch has at least. A stream that can be read only once,
        such as a generator, is a :class:`~roundhouse.errors.ConfigError`.

        Every rank, and each of its loader's workers, reads the stream from the start of the epoch
        and keeps its own samples, so reading does not get faster with more workers. The stream must
        not divide itself among ranks or workers.
        """
        return Shard(stream, num_samples)

    def steps(
        self,
        dataset: Any,
        sampler: Sampler,
        *,
        evaluation: Evaluation | Sequence[Evaluation] | None = None,
        **options: Any,
    ) -> Loop[Batch]:
        """The batches of this rank, one per step, or one per slice with
        ``job.sampler(..., slices=...)``. The script must end each one with :meth:`commit`.

        ``dataset`` has ``__getitem__`` and ``__len__``, or is the result of :meth:`shard_of`.
        ``evaluation``: one or several evaluations, which run between steps. ``options`` are those
        of PyTorch's DataLoader, such as ``num_workers`` and ``collate_fn``.
        """
        evaluations = all_of(evaluation)
        return Loop(lambda: self._loops.batches(dataset, sampler, evaluations, options), lambda: self._to_come(sampler))

    def indices(
        self, sampler: Sampler, *, evaluation: Evaluation | Sequence[Evaluation] | None = None
    ) -> Loop[Step]:
        """The steps of this rank, for a script that reads its samples itself. The script must end
        each step with :meth:`commit`."""
        evaluations = all_of(evaluation)
        return Loop(lambda: self._loops.indices(sampler, evaluations), lambda: self._to_come(sampler))

    def _to_come(self, sampler: Sampler) -> int:
        """Number of steps that are not committed yet, as far as this process knows."""
        return max(sampler.total_steps - self.steps_done, 0)

    def commit(
        self,
        loss: torch.Tensor | float | None,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
        scheduler: Any = None,
        *,
        scaler: Any = None,
        max_grad_norm: float | None = None,
        weight: torch.Tensor | float | None = None,
    ) -> bool:
        """Ends a step: all ranks vote on it, then the optimizer steps, and the gradients are reset.

        ``loss``: a scalar for this rank's samples, their mean or their sum according to the
        sampler's ``reduction``. With a ``scaler`` of AMP it is the loss before scaling. None in a
        process of a replica that does not know it, such as the first stage of a pipeline.
        ``optimizer``: one or several; the default is those of the state. Pass ``[]`` if the script
        changes its tensors itself in the body after the commit, also with optimizers that are not
        in the state. ``scheduler``: one or several whose ``step()`` needs no argument; they step if
        the optimizers step. With a ``scaler`` either all optimizers step or none. ``max_grad_norm``
        clips the gradients.

        ``weight``: with ``job.sampler(..., reduction="sum")``, the weight of this rank's losses,
        such as its number of tokens. Gradients and loss are divided by the weight of all ranks, so
        they are those of the mean over all tokens.

        Returns True if the step counts. False means that the generation failed: nothing has
        changed, and the loop repeats the step. With slices it also returns False for each slice of
        this rank except the last one, whose commit ends the step.

        Raises :class:`~roundhouse.errors.Diverged` if loss or gradients are not finite and there is
        no scaler, or if the scale of the scaler has fallen to 0.
        """
        return self._open.commit(loss, optimizer, scheduler, scaler=scaler, max_grad_norm=max_grad_norm, weight=weight)

    def sum(self, values: Sequence[float] | None) -> list[float]:
        """Sums numbers over the ranks, outside of a step's passes. All ranks must call it at the
        same place. Of the processes of a replica with the same samples one counts: the last one
        that gives numbers. A process that does not know them, such as the first stage of a
        pipeline, gives None.

        Raises :class:`~roundhouse.errors.PeerLost` if the generation fails in this call or failed
        before. Then continue with the loop, or call it in ``with batch:``, which continues the
        loop. A step that is not committed yet is dropped.
        """
        if self._generations.sampler is None:
            raise ConfigError("job.sum before the loop over job.steps: the ranks meet when the loop begins")
        self._check_no_slice("job.sum")
        numbers = None if values is None else [float(value) for value in values]
        if numbers is not None and not all(math.isfinite(number) for number in numbers):
            raise ConfigError(f"job.sum: {numbers} are not all finite, and the ranks agree on finite numbers alone")
        if self._replica is not None:
            numbers = self._replica.counted(numbers)
        if numbers is None:
            raise ConfigError("job.sum(None): give the numbers; None is for processes of a replica that do not know them")
        sums = self._process.sum(numbers)
        if not self._generations.confirm(sums is not None) or sums is None:
            self._lost("a rank was lost while the ranks summed numbers")
        return sums

    def alone(self, function: Callable[[], Any], *, seconds: float = 1800.0) -> Any:
        """Rank 0 calls ``function()`` while the others wait. Returns its result on rank 0, and None
        on the others.

        Use it for work of a single process, such as an evaluation, samples of text or an upload. It
        may take up to ``seconds``; the watchdogs do not treat the ranks as hung meanwhile. All
        ranks must call it at the same place of the loop's body, best after the commit. ``function``
        must call no collective.

        Raises :class:`~roundhouse.errors.PeerLost` as :meth:`sum` does. ``function`` is then not
        called again.
        """
        with self.patience(seconds):
            return function() if self.rank == 0 else None

    @contextlib.contextmanager
    def patience(self, seconds: float) -> Iterator[None]:
        """The body of this context may take each rank up to ``seconds``. The ranks wait for each
        other at its end.

        All ranks must enter it at the same place of the loop's body. It may contain collectives.
        Raises :class:`~roundhouse.errors.PeerLost` as :meth:`sum` does.
        """
        if not (math.isfinite(seconds) and 0 < seconds <= _MOST_PATIENCE):
            raise ConfigError(f"job.patience: {seconds} seconds; give a number from 1 to {_MOST_PATIENCE:.0f}, which are a week")
        if self._generations.sampler is None:
            raise ConfigError("job.patience and job.alone before the loop over job.steps: the ranks meet when the loop begins")
        self._check_no_slice("job.patience and job.alone")
        self._process.begin_wait(seconds)
        yield
        if not self._generations.confirm(self._process.end_wait()):
            self._lost("a rank was lost while the others waited for it")

    def _check_no_slice(self, what: str) -> None:
        sampler = self._generations.sampler
        if sampler is not None and sampler.slices is not None and self._open.is_incomplete:
            raise ConfigError(
                f"{what} within a step of slices: ranks have different numbers of slices, and would wait for each other; call it "
                "after a job.commit that returned True"
            )

    def _lost(self, words: str) -> NoReturn:
        """Must be called when the generation has failed between passes."""
        if self._open.step is not None:
            self._open.drop()
        self._generations.leave()
        raise PeerLost(words)

    def export(self, path: str | os.PathLike[str], module: torch.nn.Module | None = None) -> Path:
        """Rank 0 writes the current tensors of a module as safetensors, while training continues.
        The default is the first module of the state.

        Call it on all ranks, such as after a commit, or in ``then`` of an evaluation. Rank 0 copies
        the tensors to the memory of the host, and a thread writes them. No rank waits for it, and
        an error of the volume is a warning. The file gets its name when it is complete; its
        directory is created. If a write of the same file is in progress, the newest tensors follow.
        A relative ``path`` is relative to the directory of the checkpoints if there is one. Returns
        the path of the file.

        The end of the training waits for writes in progress, at most for 10 minutes. If rank 0 dies
        while it writes, the file keeps its earlier content until the next export.
        """
        rank, file = self._known("export").rank, self._file(path)
        module = module_of_file("export", module, self._modules)
        if rank < (1 if self._replica is None else self._replica.size):
            tensors = copies_of(module, self._replica)
            if rank == 0:
                self._exports.start(file, tensors, self.steps_done)
        return file

    def _file(self, path: str | os.PathLike[str]) -> Path:
        directory = self._process.checkpoint_dir
        return Path(path) if directory is None else Path(directory) / path

    def save_result(self, path: str | os.PathLike[str], module: torch.nn.Module | None = None) -> Path:
        """Rank 0 writes the tensors of a module as safetensors. The default is the first module of
        the state.

        Call it after the last step, or after a ``break`` of all ranks at the same step. A relative
        ``path`` is relative to the directory of the checkpoints if there is one. Returns on all
        ranks when the file is complete. If rank 0 is lost meanwhile, another rank writes the file.
        """
        if not self._loops.is_finished and not self._loops.has_left:
            raise NotCommitted(
                "job.save_result before the last step: call it after the loop over job.steps; an iterator of a loop that was "
                "left early must not be kept"
            )
        module = module_of_file("save_result", module, self._modules)
        self._loops.finish()
        if self._replica is not None:
            self._replica.meet(Subject.RESULT)
        file = self._file(path)
        while True:
            if self._replica is None:
                state = module.state_dict()
            elif self.rank < self._replica.size:
                # The processes of the first replica gather the weights.
                state = whole_state(module, self._replica)
            if self.rank == 0:
                # An export must not replace the result.
                self._exports.wait(_MOST_AT_END, file)
                write_result(file, state)
            if self._generations.confirm(self._process.sum([0.0]) is not None):
                return file
            self._loops.finish_again()

    # Methods of the context manager.

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, where: Any) -> None:
        if os.getpid() != self._pid:
            return
        self._ended()
        is_lost = self._generations.is_between_generations and not self._loops.is_finished
        is_replica_lost = error is not None and self._replica is not None and self._replica.explains(error)
        if is_replica_lost and not self._loops.is_finished:
            self._open.save_part()
        self._open.close()
        if isinstance(error, KeyboardInterrupt):
            if self._generations.group is not None:
                self._generations.group.abort()  # A collective may be waiting for its peers.
            # This also releases the state, because a notebook continues to run.
            self._process.fail(128 + signal.SIGINT, "interrupted")
            self._generations.leave()
            return
        if self._replica is not None and isinstance(error, RuntimeError) and self._replica.may_explain(error):
            lost = self._replica.lost(error)
            self._fail(lost)
            raise lost from error
        if error is not None and is_lost and is_without_group(error):
            # A script that uses an older group is detected in the next generation.
            lost = PeerLost(
                "a rank was lost, and the script has called a collective after that, such as after a job.commit that returned False: "
                "call it in `with batch:`, or only after a commit that returned True"
            )
            self._fail(lost)
            raise lost from error
        exits = isinstance(error, SystemExit) and not error.code
        if exits and not self._loops.is_finished:
            # Python would exit with 0, which means that the training is complete.
            words = "the script has called sys.exit() before its last step"
            self._fail(NotCommitted(words))
            raise NotCommitted(words) from error
        if error is None or exits:
            try:
                self._end()
            except Exception as trouble:
                self._fail(trouble)
                raise
            return
        self._fail(error)
        if isinstance(error, Left):
            self._exports.wait(_MOST_AT_LEAVE)
        if isinstance(error, SystemExit):
            self._generations.end()  # Other errors end the process at once.

    def _fail(self, error: BaseException) -> None:
        code, words = explained(error)
        self._process.fail(code, words, getattr(error, "newer", None))
        self._generations.leave()

    def _end(self) -> None:
        if self._generations.sampler is None:
            raise NotCommitted(
                "the script has ended without a loop over job.steps(...) or job.indices(...): it has trained nothing"
            )
        self._loops.finish()
        if self._replica is not None:
            # Another process may be in save_result.
            self._replica.meet(Subject.END)
        self._generations.leave()
        self._exports.wait(_MOST_AT_END)
        self._process.done()
        self._generations.end()
