"""What a script asks of its job: the object that ``rh.join`` returns."""

from __future__ import annotations

import contextlib
import math
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from ._native import Process
from .data import Batch
from .ending import explained, write_result
from .errors import ConfigError, NotCommitted, PeerLost
from .evaluation import Evaluation, all_of
from .generations import Generations, Place
from .gradients import Model
from .loops import Loop, Loops
from .migration import is_without_group
from .open_step import OpenStep
from .sampler import Sampler, Step
from .state import Row
from .streams import Shard

# Seconds: a week.
_MOST_PATIENCE = 604_800.0
# Options of DDP. With the last two it sums gradients that the package does not see.
_REFUSED_BY_MODEL = {
    "process_group",
    "broadcast_buffers",
    "init_sync",
    "delay_all_reduce_named_params",
    "param_to_hook_all_reduce",
}


class Job:
    """What ``rh.join`` returns."""

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
        # A child that the script forks is no member.
        self._pid = os.getpid()
        self._device = device
        row = Row(state)
        self._modules = [entry for entry in state.values() if isinstance(entry, torch.nn.Module)]
        self._generations = Generations(process, row, device)
        self._open = OpenStep(process, row, self._generations, is_manual=is_manual)
        self._loops = Loops(process, self._generations, self._open, self._modules, seeds=seeds)
        # Called when it is over.
        self._ended = ended
        if process.has_agent:
            torch.set_num_threads(process.num_threads())

    # What a script asks.

    @property
    def rank(self) -> int:
        """Rank in the current generation, from 0. In a worker of a job it is known from the beginning of the loop on."""
        return self._known("rank").rank

    @property
    def world_size(self) -> int:
        """Ranks of the current generation; known as :attr:`rank` is."""
        return self._known("world_size").world_size

    @property
    def generation(self) -> int:
        """Number of the current generation; 0 before the first."""
        return self._generations.place.generation

    @property
    def steps_done(self) -> int:
        """Committed steps."""
        return self._generations.steps_done

    @property
    def loss(self) -> float | None:
        """The loss of the step that this process has committed last: the mean over the samples of the global batch, or over their
        weight; the same on all ranks. None before the first. It costs nothing."""
        return None if self._open.outcome is None else self._open.outcome.loss

    @property
    def grad_norm(self) -> float | None:
        """The norm of that step's gradients, before they were clipped and without the scale of a scaler; None as :attr:`loss`."""
        return None if self._open.outcome is None else self._open.outcome.grad_norm

    @property
    def group(self) -> Any:
        """The process group of the current generation, for ``torch.distributed``; None in a world of one. Known as :attr:`rank`."""
        self._known("group")
        group = self._generations.group
        return None if group is None else group.process_group

    def _known(self, what: str) -> Place:
        """The place in the current generation. Before the first one each process would take itself for rank 0."""
        place = self._generations.place
        if self._process.has_agent and place.generation == 0:
            raise ConfigError(
                f"job.{what} before the loop over job.steps: the ranks meet when the loop begins; ask for it in the loop, or in "
                "job.on_generation(callback), and see 'One process prepares the data' in docs/python.md"
            )
        return place

    @property
    def device(self) -> torch.device:
        """Where the modules are."""
        return self._device

    def on_generation(self, callback: Callable[[Job], None]) -> None:
        """Calls ``callback(job)`` in each generation before its first step: it rebuilds what holds ``job.group``."""
        self._generations.callbacks.append(lambda: callback(self))

    def model(self, module: torch.nn.Module, **options: Any) -> Model:
        """The module, whose backward pass sums the gradients over the ranks of the current generation.

        ``options`` go to PyTorch's DDP, such as ``bucket_cap_mb``; ``gradient_as_bucket_view`` is True unless one says
        otherwise. The same module gives the same object: give the options in the first call. With
        ``find_unused_parameters=True`` an error of a lost peer reaches the script in ``backward``: put the body of the loop in
        ``with batch:``, which has the step done again.
        """
        # What torch.compile returns has the parameters of the module that it was given.
        inner = getattr(module, "_orig_mod", module)
        if not any(inner is own or inner in own.modules() for own in self._modules):
            raise ConfigError("job.model: the module is not in rh.join(state=...), so new workers would not get its weights")
        refused = sorted(_REFUSED_BY_MODEL & options.keys())
        if refused:
            raise ConfigError(f"job.model: {', '.join(refused)}: the job decides that in each generation; leave it out")
        return self._generations.model(module, options)

    # Which samples belong to which step.
    sampler = Sampler

    def shard_of(self, stream: Any, num_samples: int) -> Shard:
        """A stream of samples as a data set for :meth:`steps`, with ``job.sampler(..., in_order=True)``.

        ``stream``: an iterable that has the same samples in the same order each time, such as an ``IterableDataset``, or a
        function of the epoch (from 0) that returns one. ``num_samples``: how many it has in each epoch, at least. What can be
        read only once, such as a generator, is a :class:`~roundhouse.errors.ConfigError`.

        Every rank, and each of its loader's workers, reads the stream from the beginning of the epoch and keeps its own
        samples, so reading does not get faster with more workers. The stream must not divide itself among ranks or workers.
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
        """The batches of this rank, one per step. Each is to be ended by :meth:`commit`.

        ``dataset`` has ``__getitem__`` and ``__len__``, or is what :meth:`shard_of` returns. ``evaluation``, one or
        several, is done between steps. ``options`` are those of PyTorch's DataLoader, such as ``num_workers`` and ``collate_fn``.
        """
        evaluations = all_of(evaluation)
        return Loop(lambda: self._loops.batches(dataset, sampler, evaluations, options), lambda: self._to_come(sampler))

    def indices(
        self, sampler: Sampler, *, evaluation: Evaluation | Sequence[Evaluation] | None = None
    ) -> Loop[Step]:
        """The steps of this rank, for a script that reads its samples itself. Each is to be ended by :meth:`commit`."""
        evaluations = all_of(evaluation)
        return Loop(lambda: self._loops.indices(sampler, evaluations), lambda: self._to_come(sampler))

    def _to_come(self, sampler: Sampler) -> int:
        """Steps that are not committed yet, as far as this process knows."""
        return max(sampler.total_steps - self.steps_done, 0)

    def commit(
        self,
        loss: torch.Tensor | float,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
        scheduler: Any = None,
        *,
        scaler: Any = None,
        max_grad_norm: float | None = None,
        weight: torch.Tensor | float | None = None,
    ) -> bool:
        """Ends a step: all ranks agree on it, then the optimizer steps, and the gradients are reset.

        ``loss``: of this rank's samples, a scalar, as the sampler's ``reduction`` has it: their mean, or their sum. With a
        ``scaler`` of AMP it is the loss before scaling. ``optimizer``: one or several; by default those of the state; ``[]`` if
        the script changes its tensors itself in the body after the commit, also with optimizers that are not in the state.
        ``scheduler``: one or several, whose ``step()`` needs no argument; they step if the optimizers do. A ``scaler`` has all
        optimizers step, or none. ``max_grad_norm`` clips the gradients.

        ``weight``: with ``job.sampler(..., reduction="sum")``, what the losses of this rank weigh, such as its number of tokens.
        Gradients and loss are divided by the weight of all ranks: they are those of the mean over all tokens.

        True: the step counts. False: the generation broke, nothing has changed, and the loop does the step again.

        Raises :class:`~roundhouse.errors.Diverged` when loss or gradients are not finite and there is no scaler, or when the
        scale of the scaler has fallen to 0.
        """
        return self._open.commit(loss, optimizer, scheduler, scaler=scaler, max_grad_norm=max_grad_norm, weight=weight)

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sums over the ranks of numbers, outside of a step's passes. All ranks have to call it at the same place.

        Raises :class:`~roundhouse.errors.PeerLost` when the generation breaks in it, or was broken before. Continue with the
        loop then, or call it in ``with batch:``, which does so. A step that is not committed yet is dropped.
        """
        if self._generations.sampler is None:
            raise ConfigError("job.sum before the loop over job.steps: the ranks meet when the loop begins")
        numbers = [float(value) for value in values]
        if not all(math.isfinite(number) for number in numbers):
            raise ConfigError(f"job.sum: {numbers} are not all finite, and the ranks agree on finite numbers alone")
        sums = self._process.sum(numbers)
        if sums is None:
            self._lost("a rank was lost while the ranks summed numbers")
        return sums

    def alone(self, function: Callable[[], Any], *, seconds: float = 1800.0) -> Any:
        """Rank 0 calls ``function()`` while the others wait. Returns its result on rank 0, and None on the others.

        For what one process does, such as an evaluation, samples of text or an upload: it may take up to ``seconds``, and no
        watchdog takes the ranks for hung meanwhile. All ranks call it at the same place of the loop's body, best after the
        commit. ``function`` calls no collective.

        Raises :class:`~roundhouse.errors.PeerLost` as :meth:`sum` does. ``function`` is not called again then.
        """
        with self.patience(seconds):
            return function() if self.rank == 0 else None

    @contextlib.contextmanager
    def patience(self, seconds: float) -> Iterator[None]:
        """What stands in it may take each rank up to so many seconds; the ranks wait for each other at its end.

        All ranks enter it at the same place of the loop's body. It may contain collectives. Raises
        :class:`~roundhouse.errors.PeerLost` as :meth:`sum` does.
        """
        if not (math.isfinite(seconds) and 0 < seconds <= _MOST_PATIENCE):
            raise ConfigError(f"job.patience: {seconds} seconds; give a number from 1 to {_MOST_PATIENCE:.0f}, which are a week")
        if self._generations.sampler is None:
            raise ConfigError("job.patience and job.alone before the loop over job.steps: the ranks meet when the loop begins")
        self._process.begin_wait(seconds)
        yield
        if not self._process.end_wait():
            self._lost("a rank was lost while the others waited for it")

    def _lost(self, words: str) -> NoReturn:
        """The generation broke between passes."""
        if self._open.step is not None:
            self._open.drop()
        self._generations.leave()
        raise PeerLost(words)

    def save_result(self, path: str | os.PathLike[str], module: torch.nn.Module | None = None) -> Path:
        """Rank 0 writes the tensors of a module, by default of the first one of the state, as safetensors.

        Call it after the last step, or after a ``break`` of all ranks at the same step. A relative ``path`` begins at the
        directory of the checkpoints if there is one. Returns when the file is whole, on all ranks; a rank 0 that is lost
        meanwhile is replaced.
        """
        if not self._loops.is_finished and not self._loops.has_left:
            raise NotCommitted(
                "job.save_result before the last step: call it after the loop over job.steps; an iterator of a loop that was "
                "left early must not be kept"
            )
        if module is None and not self._modules:
            raise ConfigError("job.save_result without a module, and none is in rh.join(state=...): give it the module")
        module = self._modules[0] if module is None else module
        # The names of a result are those of the module itself.
        module = module.module if isinstance(module, Model) else module
        module = getattr(module, "_orig_mod", module)
        self._loops.finish()
        directory = self._process.checkpoint_dir
        file = Path(path) if directory is None else Path(directory) / path
        while True:
            if self.rank == 0:
                write_result(file, module)
            if self._process.sum([0.0]) is not None:
                return file
            self._loops.finish_again()

    # The context manager.

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, where: Any) -> None:
        if os.getpid() != self._pid:
            return
        self._ended()
        is_lost = self._generations.is_between_generations and not self._loops.is_finished
        self._open.close()
        if isinstance(error, KeyboardInterrupt):
            if self._generations.group is not None:
                self._generations.group.abort()  # A collective may wait for its peers.
            # It also lets go of the state: a notebook goes on.
            self._process.fail(128 + signal.SIGINT, "interrupted")
            self._generations.leave()
            return
        if error is not None and is_lost and is_without_group(error):
            # A script that uses an older group is recognized in the next generation.
            lost = PeerLost(
                "a rank was lost, and the script has called a collective after that, such as after a job.commit that returned False: "
                "call it in `with batch:`, or only after a commit that returned True"
            )
            self._fail(lost)
            raise lost from error
        exits = isinstance(error, SystemExit) and not error.code
        if exits and not self._loops.is_finished:
            # Python would end with 0, which says that the training is complete.
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
        self._generations.leave()
        self._process.done()
