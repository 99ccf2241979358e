"""The inside of Lightning's validation loop: the loaders that it reads, the hooks that see a batch,
and the values that ``validation_step`` logs."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.data import extract_batch_size
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from .internals import metrics_of, moved
from .kept import Kept, kept_by
from .logged import Logged, is_mean

# Methods that see a batch or the end of all, or that change a value before it is logged.
_OF_MODULES = """on_validation_batch_start on_validation_batch_end on_validation_epoch_end on_validation_end
    on_before_batch_transfer""".split()
_OF_CALLBACKS = "on_validation_batch_start on_validation_batch_end on_validation_epoch_end".split()
# Lightning's own callbacks whose methods use no batch.
_BLIND = ("lightning.pytorch.callbacks.progress.", "lightning.pytorch.callbacks.device_stats_monitor")


class Loaders:
    """The loaders of the validations of a training. ``stand_ins(loaders, limits)`` is called when
    one begins, with the numbers of batches. The loop reads what it returns in place of the loaders;
    None leaves them."""

    def __init__(self, trainer: Any, stand_ins: Callable[[list[Any], list[int]], list[Any] | None]):
        self._loop = trainer.fit_loop.epoch_loop.val_loop
        self._stand_ins, self._reset = stand_ins, self._loop.reset
        self._whole: Any = None
        self._loop.reset = self._begin

    def _begin(self) -> None:
        self.restore()
        whole = self._loop._combined_loader
        if self._loop._is_sequential and all(map(_is_in_order, whole.flattened)):
            limits = [int(min(len(loader), limit)) for loader, limit in zip(whole.flattened, self._loop.max_batches)]
            found = self._stand_ins(whole.flattened, limits)
            if found is not None:
                self._whole = whole
                self._loop._combined_loader = CombinedLoader(whole.iterables, "sequential")
                self._loop._combined_loader.flattened = found
        self._reset()

    def restore(self) -> None:
        """Must be called at the end of a validation."""
        if self._whole is not None:
            self._loop._combined_loader, self._whole = self._whole, None

    def close(self) -> None:
        """Must be called at the end of the training."""
        self.restore()
        del self._loop.reset


def _is_in_order(loader: Any) -> bool:
    """Whether a loader has the same batches on all ranks and in each epoch."""
    if getattr(type(loader), "__iter__", None) is not DataLoader.__iter__:
        return False
    batches = loader.batch_sampler
    return type(batches) is BatchSampler and type(batches.sampler) is SequentialSampler


def is_divisible(trainer: Any) -> bool:
    """Whether ``validation_step`` alone sees the batches of a validation."""
    module, data = trainer.lightning_module, trainer.datamodule
    if any(is_overridden(name, module) for name in _OF_MODULES):
        return False
    if data is not None and is_overridden("on_before_batch_transfer", data):
        return False
    takes_iterator = "dataloader_iter" in inspect.signature(module.validation_step).parameters
    is_compiled = getattr(module, "_compiler_ctx", None) is not None
    return not (takes_iterator or is_compiled or metrics_of(module) or any(map(_sees_batches, trainer.callbacks)))


def _sees_batches(callback: Any) -> bool:
    own = [getattr(callback, name) for name in _OF_CALLBACKS if is_overridden(name, callback)]
    return not all(getattr(one, "__module__", "").startswith(_BLIND) for one in own)


def kept_of(trainer: Any) -> Kept:
    """What the module, its data and the callbacks of the script keep."""
    own = [one for one in trainer.callbacks if _is_of_script(one) and not isinstance(one, ProgressBar)]
    data = [] if trainer.datamodule is None else [trainer.datamodule]
    return kept_by([*trainer.lightning_module.modules(), *data, *own], (lightning.Trainer,))


def _is_of_script(one: Any) -> bool:
    return type(one).__module__.split(".")[0] not in ("lightning", "roundhouse")


def logged_by(trainer: Any, batch: Any, index: int, dataloader_idx: int, notice: Callable[[], None]) -> list[Logged]:
    """Calls ``validation_step`` with a batch of a loader. Returns what it has logged. ``notice()``
    is called if it uses a logger itself."""
    module, loop = trainer.lightning_module, trainer.fit_loop.epoch_loop.val_loop
    batch = moved(trainer, batch, dataloader_idx)
    options = loop._build_kwargs(batch, index, dataloader_idx if loop.num_dataloaders > 1 else None)
    arguments = loop._build_step_args_from_hook_kwargs(options, "validation_step")
    with _logs_of(trainer, batch) as logged, _watched_loggers(trainer, notice), trainer.precision_plugin.val_step_context():
        # Not by way of DDP, because the ranks may have different numbers of batches.
        module.validation_step(*arguments)
    return logged


@contextlib.contextmanager
def _logs_of(trainer: Any, batch: Any) -> Iterator[list[Logged]]:
    """Keeps what the module logs from the results of the loop."""
    module, results = trainer.lightning_module, trainer.fit_loop.epoch_loop.val_loop._results
    logged: list[Logged] = []
    sizes: list[int] = []

    def log(_: str, name: str, value: Any, *, sync_dist_fn: Any = None, batch_size: int | None = None, **options: Any) -> None:
        is_weighed = batch_size is None and options["on_epoch"] and is_mean(options["reduce_fx"])
        if is_weighed and isinstance(value, torch.Tensor):
            if not sizes:
                sizes.append(extract_batch_size(batch))
            batch_size = sizes[0]
        # Without a size Lightning would look for it in the batch.
        logged.append(Logged(name, value, {**options, "batch_size": 1 if batch_size is None else batch_size}))

    before, module._current_fx_name = module._current_fx_name, "validation_step"
    results.log = log
    try:
        yield logged
    finally:
        del results.log
        module._current_fx_name = before


def log_again(module: Any, logged: list[Logged]) -> None:
    """Logs values as in ``validation_step``, which must be the hook that runs."""
    for name, value, options in logged:
        # Not by a method of the script, which has already changed the value.
        lightning.LightningModule.log(module, name, value, **options)


class _Watched:
    """A logger that reports its use."""

    def __init__(self, logger: Any, notice: Callable[[], None]):
        self._logger, self._notice = logger, notice

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._logger)

    def __getattr__(self, name: str) -> Any:
        self._notice()
        return getattr(self._logger, name)


@contextlib.contextmanager
def _watched_loggers(trainer: Any, notice: Callable[[], None]) -> Iterator[None]:
    before = trainer.loggers
    trainer.loggers = [_Watched(logger, notice) for logger in before]
    try:
        yield
    finally:
        trainer.loggers = before
