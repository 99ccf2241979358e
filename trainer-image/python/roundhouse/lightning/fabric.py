"""The strategy of ``lightning.Fabric``, for a loop of the script."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from lightning.fabric.strategies import SingleDeviceStrategy

from ..data import Batch
from ..errors import ConfigError
from ..integration.afterwards import Afterwards, stays_member, write
from ..integration.loaders import options_of
from ..job import Job
from ..sampler import Step
from . import internals, refusals
from .joining import join_once
from .pauses import Pause
from .plan import Plan, plan_of
from .repeats import Repeats
from .stand_ins import Stepped


class _Late(torch.nn.Module):
    """A module whose gradients are summed over the ranks once the job has begun."""

    def __init__(self, module: torch.nn.Module):
        super().__init__()
        self.module = module
        # A list, so that it is not a submodule: it has the module's parameters.
        self.summed: list[Any] = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return (self.summed[0] if self.summed else self.module)(*args, **kwargs)


class _Loader:
    """The train loader that the script iterates over, once per epoch."""

    def __init__(self, dataset: Any, strategy: ElasticFabric):
        self.dataset = dataset
        self._strategy = strategy

    def __len__(self) -> int:
        return self._strategy.plan_of(1).steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        return self._strategy.batches()


class ElasticFabric(SingleDeviceStrategy):
    """Makes a loop with Fabric elastic: ``Fabric(strategy=ElasticFabric(global_batch_size=256))``.

    The script iterates over :meth:`epochs`, and in each over the train loader, which is the first
    one that it gives ``setup_dataloaders``. Where :attr:`counts` is False after
    ``optimizer.step()``, a worker was lost: nothing has changed, and the loader yields the step
    again.

    ``interval``: "step" or "epoch", which is when the script calls ``scheduler.step()`` of the
    scheduler that it gives ``fabric.setup``. The other arguments are those of
    :class:`~roundhouse.lightning.Elastic`.
    """

    def __init__(
        self,
        global_batch_size: int,
        *,
        interval: str = "step",
        seed: int | None = None,
        state: dict[str, Any] | None = None,
        join: dict[str, Any] | None = None,
        patience: float = 1800.0,
        **options: Any,
    ):
        if interval not in ("step", "epoch"):
            raise ConfigError(f'roundhouse.lightning: ElasticFabric(interval={interval!r}): give "step" or "epoch"')
        super().__init__(**options)
        self._global_batch_size, self._seed, self._interval = global_batch_size, seed, interval
        self._more_state, self._join_options, self._patience = state or {}, join or {}, patience
        # Fabric sets these, as it finds the attributes.
        self.parallel_devices: Any = None
        self.num_nodes = self._num_nodes = 1
        self.job: Job | None = None
        # Whether the last optimizer.step() has changed the weights.
        self.counts = False
        self._modules: list[_Late] = []
        self._optimizers: list[Any] = []
        self._scheduler: Stepped | None = None
        self._loader: Any = None
        self._repeats: Repeats | None = None
        # Known after the training of a worker.
        self._afterwards: Afterwards | None = None
        self._loss: torch.Tensor | None = None
        if internals.IS_WORKER:
            # Until the rank is known, no worker logs.
            self.global_rank = 1
            internals.set_rank(1)

    @property
    def root_device(self) -> torch.device:
        return internals.device_of(self.accelerator, self.parallel_devices)

    @property
    def is_global_zero(self) -> bool:
        return bool(self.global_rank == 0)

    # What the script sets up.

    def setup_module(self, module: torch.nn.Module) -> torch.nn.Module:
        self._modules.append(_Late(module))
        return self._modules[-1]

    def setup_optimizer(self, optimizer: Any) -> Any:
        self._optimizers.append(optimizer)
        return optimizer

    def setup_module_and_optimizers(self, module: Any, optimizers: Any, *scheduler: Any) -> Any:
        made = super().setup_module_and_optimizers(module, optimizers, *scheduler)
        if not scheduler or scheduler[0] is None:
            return made
        refusals.refuse_plateau(scheduler[0])
        self._scheduler = Stepped(scheduler[0])
        return (*made[:2], self._scheduler)

    def process_dataloader(self, dataloader: Any) -> Any:
        if self._loader is not None:
            refusals.refuse_evaluation_loader(dataloader)
            return super().process_dataloader(dataloader)
        refusals.refuse_loader(dataloader)
        self._loader = dataloader
        return _Loader(dataloader.dataset, self)

    def plan_of(self, epochs: int) -> Plan:
        """The plan of a training of this length."""
        return plan_of(self._loader, self._global_batch_size, epochs=epochs, seed=self._seed)

    # The training.

    def epochs(self, number: int) -> Iterator[int]:
        """The epochs of the training, each for one iteration over the train loader. A new worker
        begins with the current one. Leaving them by ``break`` needs :meth:`finish`."""
        refusals.refuse_devices(self.accelerator, self.parallel_devices, self._num_nodes)
        refusals.refuse_precision(self.precision.precision)
        if self._loader is None or len(self._optimizers) != 1:
            raise ConfigError(
                f"roundhouse.lightning: epochs() with {len(self._optimizers)} optimizers and {'no' if self._loader is None else 'a'} "
                "train loader: give fabric.setup one optimizer, and fabric.setup_dataloaders the train loader first, both before epochs()"
            )
        known = [*self._more_state.values(), *([] if self._scheduler is None else [self._scheduler.inner])]
        refusals.refuse_unknown_schedulers(internals.schedulers_of(self._optimizers[0]), known)
        self._begin(self.plan_of(number))
        repeats = self._repeats
        assert repeats is not None
        while (epoch := repeats.epoch()) is not None:
            yield epoch
        self.finish()

    def _begin(self, plan: Plan) -> None:
        optimizer = self._optimizers[0]
        trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        state = {f"model{index or ''}": late.module for index, late in enumerate(self._modules)}
        state["optimizer"] = optimizer
        if self._scheduler is not None:
            state["scheduler"] = self._scheduler.inner
        self.job = job = join_once({**state, **self._more_state}, self._join_options, "epochs()")
        job.__enter__()
        with self._failing():
            job.on_generation(self._enter_generation)
            for late in self._modules:
                if any(id(parameter) in trained for parameter in late.module.parameters()):
                    late.summed.append(job.model(late.module))
            options = {**options_of(plan.loader), "worker_init_fn": plan.loader.worker_init_fn}
            options["collate_fn"] = plan.loader.collate_fn
            self._pause = Pause(job, self._patience)
            self._num_steps = plan.steps
            self._repeats = Repeats(job, job.steps(plan.loader.dataset, plan.sampler, **options), plan.steps)
            self._repeats.meet()

    def _enter_generation(self, job: Job) -> None:
        self.global_rank = job.rank
        internals.set_rank(job.rank)

    def batches(self) -> Iterator[Any]:
        """The steps of an epoch, a dropped one again."""
        if self._repeats is None:
            raise ConfigError(
                "roundhouse.lightning: the train loader outside of epochs(): write `for epoch in fabric.strategy.epochs(10):` around "
                "the loop over it"
            )
        with self._failing():
            for batch in self._repeats.batches(before=self._end_step):
                self._loss = None
                self.counts = False
                yield batch.data

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """An error in this context ends the membership, with its words."""
        try:
            yield
        except Exception as error:
            self._close(error)
            raise

    def backward(self, tensor: torch.Tensor, module: Any, *args: Any, **kwargs: Any) -> None:
        if self._repeats is not None and self._repeats.is_open:
            if self._loss is not None:
                self._refuse(
                    "two calls of fabric.backward in a step: the gradients would be summed twice; add the losses, and give their sum"
                )
            self._loss = tensor.detach()
        super().backward(tensor, module, *args, **kwargs)

    def optimizer_step(self, optimizer: Any, **kwargs: Any) -> Any:
        if self._repeats is None or self.job is None:
            return super().optimizer_step(optimizer, **kwargs)
        if kwargs:
            self._refuse("optimizer.step(closure): compute the loss before it, and leave the closure out")
        if self._loss is None:
            self._refuse(
                "optimizer.step() without fabric.backward(loss) in the step: it needs the gradients of this step's batch"
            )
        batch = self._repeats.batch
        with self._failing():
            assert batch is not None and self._loss is not None
            self.counts = self.job.commit(self._loss, optimizer, self._due_schedulers(batch.step))
        self._repeats.end(is_committed=self.counts)
        if self.counts and batch.step.ends_epoch:
            self._pause.begin()
        return self._loss

    def _due_schedulers(self, step: Step) -> list[Any]:
        is_due = self._scheduler is not None and (self._interval == "step" or step.ends_epoch)
        return [self._scheduler.inner] if is_due and self._scheduler is not None else []

    def _end_step(self, batch: Batch | None) -> None:
        """Must be called before the next step."""
        self._pause.end()
        scheduler = self._scheduler
        if scheduler is None:
            return
        was_called, scheduler.num_calls = scheduler.num_calls > 0, 0
        if batch is None or not self.counts:
            return
        is_due = bool(self._due_schedulers(batch.step))
        if is_due != was_called:
            times = {"step": "in each step", "epoch": "at the end of an epoch"}
            (other,) = times.keys() - {self._interval}
            raise ConfigError(
                f"roundhouse.lightning: scheduler.step() was {'not ' if is_due else ''}called in step {batch.step.number}, but "
                f'ElasticFabric(interval="{self._interval}") steps the scheduler {times[self._interval]}; '
                f'give interval="{other}", or call it so'
            )

    def finish(self) -> None:
        """Completes the training with all ranks, which have left :meth:`epochs` after the same
        step."""
        if self._repeats is not None and self.job is not None:
            with self._failing():
                self._pause.end()
                self._repeats.leave()
                if stays_member():
                    self._afterwards = Afterwards(self.job, self._num_steps)
            self._close(None)

    def _close(self, error: BaseException | None) -> None:
        job, self._repeats = self.job, None
        for late in self._modules:
            late.summed.clear()
        if job is not None and error is None and self._afterwards is not None:
            self._afterwards.stay()
        elif job is not None:
            job.__exit__(None if error is None else type(error), error, None if error is None else error.__traceback__)

    def save_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> None:
        """Writes a checkpoint on rank 0. After the training it returns on all ranks when the file
        is complete: if rank 0 is lost meanwhile, another rank writes it."""
        save = super().save_checkpoint
        write(self._afterwards, path, lambda: save(path, *args, **kwargs))

    def _refuse(self, words: str) -> None:
        with self._failing():
            raise ConfigError(f"roundhouse.lightning: {words}")

    # What a script must not do in a step.

    def all_gather(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self._repeats is not None and self._repeats.is_open:
            self._refuse("fabric.all_gather in a step: its result, and so the gradient, would depend on the number of workers")
        return super().all_gather(tensor, *args, **kwargs)

    def clip_gradients_norm(self, *args: Any, **kwargs: Any) -> Any:
        # The gradients are those of all workers. If one was lost, they may be anything, and the
        # commit drops them.
        return super().clip_gradients_norm(*args, **{**kwargs, "error_if_nonfinite": False})

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        if self._repeats is not None:
            self._refuse(
                f"fabric.load({str(path)!r}) in a training: a job continues from its own checkpoints; load weights before epochs()"
            )
        return super().load_checkpoint(path, *args, **kwargs)
