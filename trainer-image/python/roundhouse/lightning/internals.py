"""The inside of Lightning: the counters of its loops, the values that a module logs, and the rank
that it takes for its own. The methods that the strategies replace are checked when this package is
imported, and the attributes of a Trainer when its training begins.

Lightning believes that it trains on one device. Its loop gets one batch per step of the job, which
is this rank's share, and hands the strategy a closure of the forward and the backward pass. The
strategy calls it once per pass, commits the step with all others, and repeats a dropped one.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import math
import operator
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ..errors import ConfigError
from ..sampler import Step

_SUPPORTED = "lightning 2.4 and newer, tested up to 2.6.6"
IS_WORKER = bool(os.environ.get("ROUNDHOUSE_MEMBERSHIP_FILE"))

# Methods that the strategies replace or call, by class.
_METHODS = {
    "pytorch.strategies:SingleDeviceStrategy": """backward batch_to_device on_exception optimizer_step
        process_dataloader setup teardown training_step validation_step all_gather is_global_zero root_device""",
    "pytorch.plugins:Precision": "_wrap_closure convert_input",
    "pytorch:LightningModule": "_on_before_batch_transfer configure_gradient_clipping log lr_scheduler_step validation_step",
    "pytorch.loops.evaluation_loop:_EvaluationLoop": """reset max_batches num_dataloaders _is_sequential _build_kwargs
        _build_step_args_from_hook_kwargs""",
    "pytorch.utilities.combined_loader:CombinedLoader": "flattened iterables",
    "fabric.strategies:SingleDeviceStrategy": """backward clip_gradients_norm load_checkpoint optimizer_step
        process_dataloader setup_module_and_optimizers setup_module setup_optimizer""",
}
# What a Trainer has.
_ATTRIBUTES = """
    _accelerator_connector.cluster_environment _data_connector log_every_n_steps
    _signal_connector.received_sigterm _signal_connector.register_signal_handlers
    fit_loop.epoch_loop._batches_that_stepped fit_loop.epoch_loop._results fit_loop.epoch_loop.val_loop._results
    fit_loop.epoch_loop.val_loop._combined_loader
    fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed
    fit_loop.epoch_loop.batch_progress.current.processed fit_loop.epoch_progress.current.processed
    fit_loop.setup_data fit_loop._can_stop_early
""".split()


def check_library() -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` if Lightning is missing, or is another one."""
    try:
        import lightning
        import lightning.fabric.plugins
        import lightning.fabric.strategies
        import lightning.pytorch.loops.evaluation_loop
        import lightning.pytorch.plugins
        import lightning.pytorch.strategies
        import lightning.pytorch.utilities.combined_loader
    except ImportError as error:
        raise ConfigError(
            f"roundhouse.lightning needs lightning ({_SUPPORTED}): {error}; pip install 'roundhouse[lightning]'"
        ) from error
    for place, names in _METHODS.items():
        module, _, name = place.partition(":")
        check_names(getattr(operator.attrgetter(module)(lightning), name), names.split(), lightning.__version__)


def check_names(owner: Any, names: list[str], version: str) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` if a class or an object has not all names."""
    missing = []
    for name in names:
        try:
            operator.attrgetter(name)(owner)
        except AttributeError:
            missing.append(name)
    if missing:
        kind = owner if isinstance(owner, type) else type(owner)
        raise ConfigError(
            f"roundhouse.lightning supports {_SUPPORTED}; lightning {version} is installed, whose {kind.__name__} has no "
            f"{', '.join(missing)}"
        )


def check_trainer(trainer: Any) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` if a Trainer has not all attributes that are
    used here."""
    import lightning

    check_names(trainer, _ATTRIBUTES, lightning.__version__)


# Ranks.


def set_rank(rank: int) -> None:
    """Sets the rank by which Lightning decides who logs and prints."""
    from lightning.pytorch.utilities.rank_zero import rank_zero_only

    rank_zero_only.rank = rank


def show_progress(trainer: Any, is_shown: bool) -> None:
    """Shows or hides the progress bar."""
    bar = trainer.progress_bar_callback
    if bar is None or bar.is_enabled == is_shown:
        return
    if not is_shown:
        bar.disable()
    elif trainer.fit_loop.epoch_progress.total.ready == 0:
        bar.enable()
    elif hasattr(bar, "init_train_tqdm"):
        # The training has begun, and its bar was made when this rank showed none.
        bar.enable()
        bar.train_progress_bar = bar.init_train_tqdm()
        bar.train_progress_bar.reset(trainer.num_training_batches)


def load_callback(callback: Any, state: dict[str, Any]) -> None:
    """Loads the state of the same callback of another worker."""
    if "dirpath" in state and hasattr(callback, "dirpath"):
        # A worker that joins later would choose another directory.
        callback.dirpath = state["dirpath"]
    callback.load_state_dict(state)


def keep_csv_files(trainer: Any) -> None:
    """Keeps the metrics that another worker has written: a ``CSVLogger`` deletes them when it
    begins to write."""
    for logger in trainer.loggers:
        if type(logger).__name__ != "CSVLogger" or logger._experiment is not None:
            continue
        file = Path(logger.log_dir) / "metrics.csv"
        number = 1
        while (kept := file.with_name(f"metrics-{number}.csv")).exists():
            number += 1
        if file.exists():
            file.rename(kept)


def keep_signal_handlers(trainer: Any) -> None:
    """Keeps the trainer from handling SIGTERM, by which the job asks a worker to leave."""
    trainer._signal_connector.register_signal_handlers = lambda: None


def device_of(accelerator: Any, devices: Any) -> torch.device:
    """The device of this process. ``devices``: those of the Trainer's argument."""
    # Trainer and Fabric have different classes of this name.
    if type(accelerator).__name__ != "CUDAAccelerator":
        return torch.device("cpu")
    if IS_WORKER:
        # Other GPUs belong to other processes of this worker.
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return devices[0] if devices else torch.device("cuda", 0)


# Counters.


def count(trainer: Any, step: Step, steps_per_epoch: int) -> None:
    """Sets the counters to those before a step. They differ in a worker that has joined later, and
    in one that was stopped for a while."""
    loop = trainer.fit_loop.epoch_loop
    done, index = step.number - 1, step.number - 1 - step.epoch * steps_per_epoch
    _set(loop.batch_progress.total, done)
    _set(loop.batch_progress.current, index)
    count_steps(trainer, done)
    # It finds the last batch of an epoch by this number.
    trainer.fit_loop._data_fetcher.fetched = index


def count_epochs(trainer: Any, epochs: int, steps: int) -> None:
    """Sets the counters to those between two epochs."""
    _set(trainer.fit_loop.epoch_progress.total, epochs)
    _set(trainer.fit_loop.epoch_progress.current, epochs)
    count_steps(trainer, steps)


def count_steps(trainer: Any, steps: int) -> None:
    """Sets the number of committed steps."""
    _set(trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total, steps)
    trainer.fit_loop.epoch_loop._batches_that_stepped = steps


def end_epoch_before(trainer: Any, epoch: int) -> None:
    """Must be called in ``on_train_epoch_end`` if this worker has missed epochs: the next one is
    ``epoch``."""
    for progress in (trainer.fit_loop.epoch_progress.total, trainer.fit_loop.epoch_progress.current):
        progress.ready = progress.started = progress.processed = epoch
        progress.completed = epoch - 1


def _set(progress: Any, number: int) -> None:
    for name in vars(progress):
        setattr(progress, name, number)


# One pass.


def moved(trainer: Any, batch: Any, dataloader_idx: int = 0) -> Any:
    """A batch as the loop hands it to ``training_step`` or ``validation_step``."""
    batch = trainer.precision_plugin.convert_input(batch)
    batch = trainer.lightning_module._on_before_batch_transfer(batch, dataloader_idx=dataloader_idx)
    return trainer.strategy.batch_to_device(batch, dataloader_idx=dataloader_idx)


def log_for(trainer: Any, batch: Any) -> None:
    """The values that are logged next are those of this batch."""
    results = trainer.fit_loop.epoch_loop._results
    results.batch, results.batch_size = batch, None


@contextlib.contextmanager
def without_zero_grad(optimizer: Any) -> Iterator[None]:
    """The closure must not reset the gradients of earlier passes; the commit does it."""
    optimizer.zero_grad = lambda *_, **__: None
    try:
        yield
    finally:
        del optimizer.zero_grad


def call_last(precision: Any, module: Any, optimizer: Any, closure: Callable[[], Any]) -> None:
    """The last pass of a step. Then come the hooks before the optimizer's step, and the clipping,
    with the gradients of all workers."""
    precision._wrap_closure(module, optimizer, closure)


def set_loss(closure: Any, loss: float) -> None:
    """Sets the loss that callbacks get as an output of the step."""
    result: Any = getattr(closure, "_result", None)
    if isinstance(getattr(result, "loss", None), torch.Tensor):
        result.loss = torch.full_like(result.loss, loss)


# Logged values.


def is_log_due(trainer: Any, step: Step) -> bool:
    """Whether loggers write the values of this step. All ranks must agree, so this does not ask
    whether a rank has stopped."""
    every = trainer.log_every_n_steps
    return bool(every) and step.number % every == 0


class Entry:
    """A value that ``training_step`` logs, over the passes of this rank."""

    def __init__(self, metric: Any):
        self._metric = metric
        meta = metric.meta
        self.on_step, self.on_epoch = meta.on_step, meta.on_epoch
        # A metric of torchmetrics keeps its own sums.
        self.has_sums = metric.is_tensor
        kinds = {"sum": meta.is_sum_reduction, "min": meta.is_min_reduction, "max": meta.is_max_reduction}
        self.kind = next((kind for kind, is_it in kinds.items() if is_it and metric.is_tensor), "mean")

    @property
    def last(self) -> torch.Tensor | None:
        """The value of the last pass, or the one that was set."""
        value = self._metric._forward_cache
        return value if isinstance(value, torch.Tensor) and value.numel() == 1 else None

    @last.setter
    def last(self, value: torch.Tensor | None) -> None:
        self._metric._forward_cache = value
        if self.has_sums and not self.on_epoch and value is not None:
            self._metric.value = value

    def sums(self) -> tuple[float, float]:
        """The sum of the epoch and its weight, or its value and 0."""
        weight = self._metric.cumulated_batch_size if self.kind == "mean" else 0.0
        return float(self._metric.value), float(weight)

    def set_sums(self, value: float, weight: float) -> None:
        self._metric.value = torch.full_like(self._metric.value, value)
        if self.kind == "mean":
            self._metric.cumulated_batch_size = torch.full_like(self._metric.cumulated_batch_size, weight)
        self._metric._computed = None

    def computed(self) -> float:
        """The value of the epoch of a metric of torchmetrics; not a number if it is not one."""
        value = self._metric.compute()
        return float(value) if isinstance(value, torch.Tensor) and value.numel() == 1 else math.nan

    def set_computed(self, value: float) -> None:
        if not math.isnan(value):
            self._metric._computed = torch.full_like(self._metric.compute(), value)


def entries_of(trainer: Any) -> dict[str, Entry]:
    """What ``training_step`` has logged in this epoch, by name."""
    results = trainer.fit_loop.epoch_loop._results
    return {key: Entry(one) for key, one in sorted(results.items()) if one.meta.fx == "training_step" and not one.has_reset}


def schedulers_of(optimizer: Any) -> list[Any]:
    """The schedulers that exist for an optimizer, or for Fabric's wrapper of it. Those that another
    one calls are left out."""
    kind = torch.optim.lr_scheduler.LRScheduler
    known = [one for one in gc.get_objects() if issubclass(type(one), kind)]
    inner = {id(part) for one in known for part in getattr(one, "_schedulers", ())}
    owners = [(one, getattr(one, "optimizer", None)) for one in known if id(one) not in inner]
    return [one for one, owner in owners if optimizer is owner or optimizer is getattr(owner, "_optimizer", None)]


def metrics_of(module: Any) -> list[Any]:
    """The metrics of torchmetrics in a module."""
    from torchmetrics import Metric

    return [one for one in module.modules() if isinstance(one, Metric)]


def never() -> bool:
    return False


def compute_apart(metrics: list[Any]) -> None:
    """Keeps metrics from collectives of their own. A lost worker would end the others in one."""
    for metric in metrics:
        metric.distributed_available_fn = never
    warnings.filterwarnings("ignore", message=".*sync_dist=True.*")


class Snapshot:
    """The logged values before a step, for a step that is repeated."""

    def __init__(self, trainer: Any, metrics: list[Any]):
        self._results = trainer.fit_loop.epoch_loop._results
        # An update assigns other tensors.
        self._logged = {key: dict(vars(one)) for key, one in self._results.items()}
        self._states = [
            (one, {name: _copied(value) for name, value in one.metric_state.items()}, one._update_count) for one in metrics
        ]

    def restore(self) -> None:
        for key, metric in list(self._results.items()):
            if key in self._logged:
                vars(metric).update(self._logged[key])
            else:
                # Other ranks have it, too.
                metric.reset()
                metric.has_reset = False
        for metric, states, num_updates in self._states:
            for name, value in states.items():
                setattr(metric, name, _copied(value))
            metric._update_count, metric._computed = num_updates, None


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else list(value)


def evaluated(trainer: Any) -> dict[str, Any]:
    """The metrics of the evaluation that has ended, by name, each as a tensor that can be set with
    :func:`set_evaluated`."""
    results = trainer.fit_loop.epoch_loop.val_loop._results
    found = {key: one._computed for key, one in sorted(results.items()) if not one.has_reset}
    return {key: value for key, value in found.items() if isinstance(value, torch.Tensor) and value.numel() == 1}


def set_evaluated(trainer: Any, key: str, value: float) -> None:
    metric = trainer.fit_loop.epoch_loop.val_loop._results[key]
    metric._computed = torch.full_like(metric._computed, value)


def asked_checkpoint() -> Any:
    """What the script has given ``fit(ckpt_path=...)``. Lightning keeps no "last" while there is no
    such file, and a worker that starts again would find one."""
    from lightning.pytorch import Trainer

    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is Trainer.fit.__code__:
            return frame.f_locals.get("ckpt_path")
        frame = frame.f_back
    return None
