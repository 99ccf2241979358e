"""The inside of Lightning's validation loop: the loaders and hooks that keep the ranks from
dividing it, and the values that ``validation_step`` logs."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator
from typing import Any

import lightning
from lightning.pytorch.utilities.data import extract_batch_size
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from ..integration.loaders import iterates_as, sampler_of
from ..replica import current
from .internals import metrics_of, moved
from .logged import Logged, is_mean

# Methods that see a batch, or what validation_step has kept of all batches.
_OF_CALLBACKS = ("on_validation_batch_start", "on_validation_batch_end")
_OF_DATA = ("on_before_batch_transfer",)
_OF_MODULES = (*_OF_CALLBACKS, *_OF_DATA, "on_validation_epoch_end", "on_validation_end")
# Modules of Lightning's callbacks whose methods do not use the batch.
_LIBRARY_CALLBACKS = ("lightning.pytorch.callbacks.progress.", "lightning.pytorch.callbacks.device_stats_monitor")


def obstacle_to(trainer: Any) -> str | None:
    """Why the ranks cannot divide a validation, and what to change. None if they can."""
    module, loop = trainer.lightning_module, trainer.fit_loop.epoch_loop.val_loop
    if current() is not None:
        return "a worker has several processes that share a model; leave the option out"
    if not loop._is_sequential:
        return "the CombinedLoader is not sequential; give it mode='sequential'"
    for loader in loop._combined_loader.flattened:
        if (kind := _kind_out_of_order(loader)) is not None:
            return f"a validation loader has {kind}; give a DataLoader that reads a data set in its order, without a sampler"
    if (hook := _hook_with_batches(trainer)) is not None:
        return f"{hook} may need each batch; remove it, or leave the option out"
    if "dataloader_iter" in inspect.signature(module.validation_step).parameters:
        return "validation_step(dataloader_iter) reads the batches; let it take batch and batch_idx"
    if metrics := metrics_of(module):
        return f"the module has a {type(metrics[0]).__name__} of torchmetrics, which sums batches itself; log tensors in place of it"
    if getattr(module, "_compiler_ctx", None) is not None:
        return "the whole module is compiled; compile a part of it"
    return None


def _kind_out_of_order(loader: Any) -> str | None:
    """What keeps a loader from having the same batches on all ranks. None if it has them."""
    if not iterates_as(loader, DataLoader):
        return f"the type {type(loader).__name__}"
    if isinstance(loader.dataset, IterableDataset):
        return f"a {type(loader.dataset).__name__}, which is an IterableDataset"
    sampler = sampler_of(loader)
    if type(sampler) is SequentialSampler:
        return None
    return "batch_size=None" if sampler is None else f"a {type(sampler).__name__}"


def _hook_with_batches(trainer: Any) -> str | None:
    """The first method of the script that may need each batch."""
    owners = [(trainer.lightning_module, _OF_MODULES), (trainer.datamodule, _OF_DATA)]
    owners += [(callback, _OF_CALLBACKS) for callback in trainer.callbacks]
    for owner, names in owners:
        for name in names:
            if owner is None or not is_overridden(name, owner):
                continue
            if not getattr(getattr(owner, name), "__module__", "").startswith(_LIBRARY_CALLBACKS):
                return f"{type(owner).__name__}.{name}"
    return None


def logged_by(trainer: Any, batch: Any, index: int, dataloader_idx: int) -> list[Logged]:
    """Calls ``validation_step`` with a batch of a loader. Returns what it has logged."""
    module, loop = trainer.lightning_module, trainer.fit_loop.epoch_loop.val_loop
    batch = moved(trainer, batch, dataloader_idx)
    options = loop._build_kwargs(batch, index, dataloader_idx if loop.num_dataloaders > 1 else None)
    arguments = loop._build_step_args_from_hook_kwargs(options, "validation_step")
    with _logs_of(loop._results, batch) as logged, trainer.precision_plugin.val_step_context():
        # DDP would synchronize buffers, and the ranks may have different numbers of batches.
        module.validation_step(*arguments)
    return logged


@contextlib.contextmanager
def _logs_of(results: Any, batch: Any) -> Iterator[list[Logged]]:
    """Keeps what the module logs from the results of the loop."""
    logged: list[Logged] = []
    size = functools.cache(lambda: extract_batch_size(batch))

    def log(_: str, name: str, value: Any, **options: Any) -> None:
        # The values of all workers are logged in each of them, so none is exchanged.
        del options["sync_dist_fn"], options["sync_dist_group"]
        if options["batch_size"] is None:
            # Lightning, too, looks for the size in the batch only if it weighs a mean.
            is_weighed = options["on_epoch"] and is_mean(options["reduce_fx"])
            options["batch_size"] = size() if is_weighed else 1
        # The batch size may be a tensor, and a flag a bool of NumPy.
        plain = {key: option.item() if hasattr(option, "item") else option for key, option in options.items()}
        logged.append(Logged(name, value, plain))

    results.log = log
    try:
        yield logged
    finally:
        del results.log


def log_again(module: Any, logged: list[Logged]) -> None:
    """Logs values as in ``validation_step``, which must be the hook that runs."""
    for name, value, options in logged:
        # Not by a method of the script, which has already changed the value.
        lightning.LightningModule.log(module, name, value, **options)
