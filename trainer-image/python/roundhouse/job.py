"""A process of a training, from ``rh.join`` to its end."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ._native import Process, fault_point
from .buffers import Buffers
from .data import Batch, Loader, Sampler, Step
from .ending import exit_with, explained, write_result
from .errors import AlreadyJoined, ConfigError, Diverged, NotCommitted, PeerLost
from .evaluation import Evaluation, evaluate
from .generations import Generations
from .gradients import Model, shortened
from .seeding import mixed, seed_all
from .state import Row
from .streams import Shard
from .updates import forget_gradients, gradient_norm, loss_sum, unscaled_norm, update

_joined: Job | None = None


def join(
    state: dict[str, Any],
    *,
    device: torch.device | str | None = None,
    gradients: str = "ddp",
    seed_each_step: bool = True,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_every_steps: int | None = None,
    checkpoint_every_seconds: int | None = None,
    checkpoint_keep: int | None = None,
) -> Job:
    """This process becomes a member of its job; use it as ``with rh.join(...) as job:``.

    ``state`` names what a new worker has to be sent and a checkpoint has to hold: modules, optimizers, schedulers, tensors,
    anything with ``state_dict`` and ``load_state_dict``. ``device``: where the modules are; by default that of the first
    tensor. ``gradients="manual"``: the script sums its gradients itself, over ``job.group``. ``seed_each_step=False`` leaves
    the random number generators alone; a step that is done again then draws other numbers.

    In a worker of a TrainingJob everything else comes from the job. Outside of one the process is a world of one, and the
    ``checkpoint_*`` arguments say where checkpoints and the ledger are kept, if at all.

    Raises :class:`~roundhouse.errors.StateError` for an entry that cannot be kept, and
    :class:`~roundhouse.errors.AlreadyJoined` the second time.
    """
    global _joined
    # A worker's process that has trained leaves the job; another lobby would wait for ever.
    if _joined is not None and (_joined._process.has_agent or not _joined._over):
        raise AlreadyJoined("rh.join was called twice: a process is a member of one job; put both models in one state")
    if gradients not in ("ddp", "manual"):
        raise ConfigError(f'rh.join: gradients is {gradients!r}; give "ddp" or "manual"')
    if os.environ.get("ROUNDHOUSE_GENERATION"):
        sys.excepthook = exit_with
        raise ConfigError(
            "rh.join in a job with elastic.mode: Restart, which ends and starts the script for every generation: set "
            "elastic.mode: InProcess"
        )
    if os.environ.get("ROUNDHOUSE_MEMBERSHIP_FILE"):
        sys.excepthook = exit_with
    process = Process.start(
        None if checkpoint_dir is None else Path(checkpoint_dir),
        checkpoint_every_steps,
        checkpoint_every_seconds,
        checkpoint_keep,
    )
    try:
        _joined = Job(process, state, device, gradients == "manual", seed_each_step)
    except Exception as error:
        # Also one of the script's own, such as that of a state_dict().
        process.fail(*explained(error))
        raise
    return _joined


class Job:
    """What ``rh.join`` returns."""

    def __init__(
        self,
        process: Process,
        state: dict[str, Any],
        device: torch.device | str | None,
        is_manual: bool,
        seeds: bool,
    ):
        self._process = process
        self._row = Row(state)
        self._device = _device_of(state) if device is None else torch.device(device)
        if self._device.type == "cuda" and self._device.index is None:
            # Other threads have another current device.
            self._device = torch.device("cuda", torch.cuda.current_device())
        self._is_manual = is_manual
        self._seeds = seeds
        self._optimizers = [entry for entry in state.values() if isinstance(entry, torch.optim.Optimizer)]
        self._modules = [entry for entry in state.values() if isinstance(entry, torch.nn.Module)]
        self._scalers = [entry for entry in state.values() if isinstance(entry, torch.amp.GradScaler)]
        self._buffers = Buffers(self._modules)
        self._generations = Generations(process, self._row, self._device)
        self._gradients = self._generations.gradients
        self._step: Step | None = None
        self._is_committing = False
        self._is_finished = False
        # The script has left the loop over the steps before the last one.
        self._has_left = False
        self._over = False
        self._began_at = self._loaded_at = 0.0
        self._hooks = [register_optimizer_step_pre_hook(self._check_step)]
        if process.has_agent:
            torch.set_num_threads(process.num_threads(os.cpu_count() or 1))

    # What a script asks.

    @property
    def rank(self) -> int:
        """Rank in the current generation, from 0."""
        return self._generations.place.rank

    @property
    def world_size(self) -> int:
        """Ranks of the current generation."""
        return self._generations.place.world_size

    @property
    def generation(self) -> int:
        """Number of the current generation; 0 before the first."""
        return self._generations.place.generation

    @property
    def steps_done(self) -> int:
        """Committed steps."""
        return self._generations.steps_done

    @property
    def group(self) -> Any:
        """The process group of the current generation, for ``torch.distributed``; None in a world of one."""
        group = self._generations.group
        return None if group is None else group.process_group

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
        otherwise. The same module gives the same object. With ``find_unused_parameters=True`` an error of a lost peer reaches
        the script in ``backward``: put the body of the loop in ``with batch:``, which has the step done again.
        """
        # What torch.compile returns has the parameters of the module that it was given.
        inner = getattr(module, "_orig_mod", module)
        if not any(inner is own or inner in own.modules() for own in self._modules):
            raise ConfigError("job.model: the module is not in rh.join(state=...), so new workers would not get its weights")
        refused = sorted({"process_group", "broadcast_buffers", "init_sync"} & options.keys())
        if refused:
            raise ConfigError(f"job.model: {', '.join(refused)}: the job decides that in each generation; leave it out")
        return self._generations.model(module, options)

    def sampler(self, num_samples: int, global_batch_size: int, **options: Any) -> Sampler:
        """Which samples belong to which step: see :class:`~roundhouse.data.Sampler`."""
        return Sampler(num_samples, global_batch_size, **options)

    def shard_of(self, stream: Any, num_samples: int) -> Shard:
        """A stream of samples as a data set for :meth:`steps`, with ``job.sampler(..., in_order=True)``.

        ``stream``: an iterable that has the same samples in the same order each time, such as an ``IterableDataset``, or a
        function of the epoch (from 0) that returns one. ``num_samples``: how many it has in each epoch, at least.

        Every rank, and each of its loader's workers, reads the stream from the beginning of the epoch and keeps its own
        samples, so reading does not get faster with more workers. The stream must not divide itself among ranks or workers.
        """
        return Shard(stream, num_samples)

    def steps(
        self, dataset: Any, sampler: Sampler, *, evaluation: Evaluation | None = None, **options: Any
    ) -> Iterable[Batch]:
        """The batches of this rank, one per step. Each is to be ended by :meth:`commit`.

        ``dataset`` has ``__getitem__`` and ``__len__``, or is what :meth:`shard_of` returns. ``evaluation`` is done between steps. ``options`` are those of PyTorch's
        DataLoader, such as ``num_workers`` and ``collate_fn``.
        """
        return Loop(lambda: self._batches(dataset, sampler, evaluation, options))

    def _batches(
        self, dataset: Any, sampler: Sampler, evaluation: Evaluation | None, options: dict[str, Any]
    ) -> Iterator[Batch]:
        loader = Loader(dataset, sampler, seeds=self._seeds, **options)
        try:
            for step in self._steps(sampler, evaluation):
                data = loader.load(step, self._generations.place.samples)
                # Not before: reading in this process has drawn random numbers.
                self._seed(step)
                self._loaded_at = time.perf_counter()
                yield Batch(step, data, self)
        except GeneratorExit:
            loader.close()
            raise
        # Not after an error, which ends the process and with it the workers: to end in order may take them seconds.
        loader.close()

    def indices(self, sampler: Sampler, *, evaluation: Evaluation | None = None) -> Iterable[Step]:
        """The steps of this rank, for a script that reads its samples itself. Each is to be ended by :meth:`commit`."""
        return Loop(lambda: self._seeded(sampler, evaluation))

    def _seeded(self, sampler: Sampler, evaluation: Evaluation | None) -> Iterator[Step]:
        for step in self._steps(sampler, evaluation):
            self._seed(step)
            yield step

    def commit(
        self,
        loss: torch.Tensor | float,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
        scheduler: Any = None,
        *,
        scaler: Any = None,
        max_grad_norm: float | None = None,
    ) -> bool:
        """Ends a step: all ranks agree on it, then the optimizer steps, and the gradients are reset.

        ``loss``: of this rank's samples, a scalar, as the sampler's ``reduction`` has it: their mean, or their sum. With a
        ``scaler`` of AMP it is the loss before scaling. ``optimizer``: one or several; by default those of the state; ``[]`` if
        the script changes its tensors itself after the commit. ``max_grad_norm`` clips the gradients.

        True: the step counts. False: the generation broke, nothing has changed, and the loop does the step again.

        Raises :class:`~roundhouse.errors.Diverged` when loss or gradients are not finite and there is no scaler.
        """
        step = self._step
        if step is None:
            raise NotCommitted("job.commit outside of a step: call it once in the body of `for batch in job.steps(...)`")
        optimizers = self._chosen(optimizer)
        for entry in (scheduler, scaler):
            self._check_entry(entry)
        # As usual in scripts that can train with and without: one that is switched off scales nothing.
        scaler = scaler if scaler is not None and scaler.is_enabled() else None
        ended_at = time.perf_counter()
        self._check_summed(optimizers)
        gradients = self._gradients
        clipped_to = max_grad_norm if scaler is None else None
        assert self._generations.sampler is not None
        total = loss_sum(loss, step, self._generations.sampler.reduction)
        # All that can fail on one rank alone comes first: what it has told is what the others commit. The norm of summed
        # gradients is computed while the ranks hear from each other, since it is the same on all of them; that of a script
        # that sums its gradients itself may not be. With a scaler the gradients are scaled until all have agreed: unscaling
        # cannot be done again.
        norm = gradient_norm(optimizers, clipped_to) if self._is_manual else 0.0
        self._tell(step, total, is_finite=math.isfinite(norm) or scaler is not None)
        if not self._is_manual:
            norm = gradient_norm(optimizers, clipped_to)
        agreed = self._process.agree(finite=math.isfinite(norm) or scaler is not None, broke=gradients.broken)
        agreed_at = time.perf_counter()
        if agreed is None:
            self._generations.check_drop(step, gradients)
            self._drop()
            return False
        mean_loss, all_finite = agreed
        if scaler is not None:
            norm = unscaled_norm(optimizers, max_grad_norm, scaler, norm)
        elif not (all_finite and math.isfinite(mean_loss)):
            raise Diverged(
                f"step {step.number}: loss {mean_loss:.4}, gradient norm {norm:.4}: training diverges; lower the learning "
                "rate, add a warm-up, or give job.commit max_grad_norm"
            )
        learning_rate = float(optimizers[0].param_groups[0]["lr"]) if optimizers else 0.0
        self._is_committing = True
        try:
            skipped = update(optimizers, scheduler, scaler)
        finally:
            self._is_committing = False
        # Also of the optimizers that this step does not use: a pass through a discriminator leaves gradients for its next step.
        forget_gradients([*self._optimizers, *optimizers])
        computed = gradients.computed_at or ended_at
        spent = [
            max(self._loaded_at - self._began_at, 0.0),
            0.0,
            max(computed - self._loaded_at, 0.0),
            max(ended_at - computed, 0.0) + agreed_at - ended_at,
            time.perf_counter() - agreed_at,
        ]
        self._step = None
        self._generations.steps_done = step.number
        self._process.conclude(skipped=skipped, gradient_norm=norm, learning_rate=learning_rate, spent=spent)
        return True

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
            if self._step is not None:
                self._drop()
            self._generations.leave()
            raise PeerLost("a rank was lost while the ranks summed numbers")
        return sums

    def save_result(self, path: str | os.PathLike[str], module: torch.nn.Module | None = None) -> Path:
        """Rank 0 writes the tensors of a module, by default of the first one of the state, as safetensors.

        Call it after the last step, or after a ``break`` of all ranks at the same step. A relative ``path`` begins at the directory of the checkpoints if there is one. Returns
        when the file is whole, on all ranks; a rank 0 that is lost meanwhile is replaced.
        """
        if not self._is_finished and not self._has_left:
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
        self._finish()
        directory = self._process.checkpoint_dir
        file = Path(path) if directory is None else Path(directory) / path
        while True:
            if self.rank == 0:
                write_result(file, module)
            if self._process.sum([0.0]) is not None:
                return file
            self._finish_again()

    def _finish_again(self) -> None:
        """The generation broke after the last step. All ranks of the next one do the same, whatever they had done before."""
        while True:
            if self._generations.advance():
                raise PeerLost("the state was lost with all ranks that had it: another start continues from a checkpoint")
            if self._process.finish():
                return

    # The context manager.

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, where: Any) -> None:
        global _joined
        self._over = True
        if not self._process.has_agent:
            _joined = None  # A notebook joins again, and has no use for this model.
        for hook in self._hooks:
            hook.remove()
        self._step = None
        if isinstance(error, KeyboardInterrupt):
            if self._generations.group is not None:
                self._generations.group.abort()  # A collective may wait for its peers.
            # It also lets go of the state: a notebook goes on.
            self._process.fail(128 + signal.SIGINT, "interrupted")
            self._generations.leave()
            return
        exits = isinstance(error, SystemExit) and not error.code
        if exits and not self._is_finished:
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
        self._finish()
        self._generations.leave()
        self._process.done()

    def _finish(self) -> None:
        """A loop that all ranks have left at the same step is complete, too."""
        while not self._is_finished:
            self._generations.meet_at_end()
            self._is_finished = self._process.finish()
            if not self._is_finished and self._generations.advance():
                raise PeerLost("not all ranks have left the loop at the same step, or one was lost meanwhile")

    # What happens at the edges of steps.

    def _steps(self, sampler: Sampler, evaluation: Evaluation | None) -> Iterator[Step]:
        generations = self._generations
        generations.prepare(sampler, self._modules, self._optimizers)
        while True:
            is_due = generations.advance()
            if is_due and self._is_finished:
                raise NotCommitted("a loop over job.steps after job.save_result: the training that was left is complete")
            place = generations.place
            if evaluation is not None and evaluation.is_due(place.samples, self._process.evaluated, sampler):
                try:
                    evaluate(evaluation, self._process, self._modules, place)
                except PeerLost as error:
                    # Of job.sum in its function `then`. A process that a newer generation has superseded ends.
                    if error.newer is not None:
                        raise
                continue
            if not is_due:
                if self._process.finish():
                    break
                continue
            step = generations.next_step()
            self._begin(step, sampler)
            try:
                yield step
            except GeneratorExit:
                self._has_left = True
                if self._step is step:
                    # The training is complete with the last committed step.
                    self._forget_step()
                raise
            if self._step is step:
                raise NotCommitted(
                    f"step {step.number}: the body of the loop has ended without job.commit(loss, optimizer); each step needs it"
                )
        self._is_finished = True

    def _begin(self, step: Step, sampler: Sampler) -> None:
        gradients = self._gradients
        gradients.begin(step)
        is_mean = sampler.reduction == "mean"
        gradients.weight = step.size / step.global_size if is_mean else float(step.size > 0)
        self._buffers.remember()
        self._step = step
        self._has_left = False
        self._began_at = self._loaded_at = time.perf_counter()
        fault_point("Forward", step.rank, step.number)

    def _seed(self, step: Step) -> None:
        if self._seeds and self._generations.sampler is not None:
            seed_all(mixed(self._generations.sampler.seed, step.number, step.rank, 1))

    def _tell(self, step: Step, loss: float, *, is_finite: bool) -> None:
        """Begins what the ranks send each other at the end of a step."""
        gradients, group = self._gradients, self._generations.group
        if group is not None:
            # Running statistics are those of rank 0, as in DDP; of the last rank if rank 0 has no samples.
            source = 0 if step.global_size >= step.world_size else step.world_size - 1
            self._buffers.share(group, source, gradients)
        if gradients.broken is None:
            self._process.tell(loss, finite=is_finite)

    def _drop(self) -> None:
        """The step is as if it had not been, and the generation is over."""
        self._forget_step()
        self._generations.leave()

    def _forget_step(self) -> None:
        """The step is as if it had not been."""
        for scaler in self._scalers:
            # That the script has unscaled the gradients is forgotten with them.
            scaler._per_optimizer_states.clear()
        self._step = None
        self._buffers.restore()
        # Also of the optimizers that the step does not use: its passes come again.
        forget_gradients(self._optimizers)

    def _collective_failed(self, error: BaseException) -> bool:
        """A collective of the script's own may have failed in the loop: whether it goes on, and does an open step again."""
        if isinstance(error, PeerLost):
            # Of job.sum, which has lost the generation. A process that a newer generation has superseded ends.
            return error.newer is None
        is_open = self._step is not None
        if self._generations.group is None or self._generations.is_of_script(error, is_open=is_open):
            return False
        self._gradients.broke(error)
        if is_open:
            self._process.agree(broke=self._gradients.broken)
            self._drop()
        else:
            self._process.lose(str(self._gradients.broken))
            self._generations.leave()
        return True

    def _chosen(self, optimizer: Any) -> list[torch.optim.Optimizer]:
        if optimizer is None:
            if not self._optimizers:
                raise ConfigError(
                    'job.commit without an optimizer, and none is in rh.join(state=...): add it, as in state={..., "opt": opt}; '
                    "a script that changes its tensors itself after the commit gives job.commit(loss, [])"
                )
            return self._optimizers
        chosen = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
        for one in chosen:
            self._check_entry(one)
        return chosen

    def _check_entry(self, entry: Any) -> None:
        if entry is not None and not any(entry is own for own in self._row.entries.values()):
            name = type(entry).__name__
            raise ConfigError(
                f"job.commit got a {name} that is not in rh.join(state=...): new workers would begin with a fresh one; "
                f'add it, as in state={{..., "{name.lower()}": {name.lower()}}}'
            )

    def _check_summed(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        gradients = self._gradients
        if self._is_manual or self._generations.group is None or gradients.broken is not None:
            return
        unsummed = gradients.unsummed(optimizers)
        if not gradients.summed:
            raise NotCommitted(
                "no gradients were summed over the ranks in this step: compute the loss with job.model(model), in training mode, "
                "and call loss.backward() before job.commit, the last time outside of no_sync(); a script that sums them itself "
                'gives rh.join(gradients="manual")'
            )
        if unsummed:
            raise NotCommitted(
                f"the gradients of {self._named(unsummed)} were not summed over the ranks in this step: compute the loss with "
                "job.model(...) of the modules that have them, in training mode, and the last pass of each outside of no_sync()"
            )
        assert self._generations.sampler is not None
        if gradients.is_summed_twice and self._generations.sampler.reduction == "sum":
            raise NotCommitted(
                "gradients were summed over the ranks twice in this step: put all passes but the last one into "
                "`with net.no_sync()`"
            )

    def _check_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Called before each step of every optimizer in this process."""
        if self._step is None or self._is_committing:
            return
        stepped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if any(optimizer is own for own in self._optimizers):
            raise NotCommitted(
                "optimizer.step() outside of job.commit: the ranks have not agreed on the step; remove it, job.commit does it"
            )
        if self._row.names_of(stepped):
            raise NotCommitted(
                f"{type(optimizer).__name__}.step() of an optimizer that is not in rh.join(state=...) would change "
                f"{self._named(stepped)}: add it to the state, and remove the call, job.commit does it"
            )

    def _named(self, parameters: Sequence[torch.Tensor]) -> str:
        return shortened(self._row.names_of(parameters)) or "parameters that are not in rh.join(state=...)"


class Loop:
    """The steps of a ``for``. Each ``for`` has an iterator of its own: that it is let go says that the loop was left."""

    def __init__(self, begin: Callable[[], Iterator[Any]]):
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        return self._begin()


def _device_of(state: dict[str, Any]) -> torch.device:
    for entry in state.values() if isinstance(state, dict) else ():
        if isinstance(entry, torch.nn.Module):
            for tensor in entry.parameters():
                return tensor.device
        if isinstance(entry, torch.Tensor):
            return entry.device
    return torch.device("cpu")
