"""Validates a small network, whose weights stay as they are, between the steps of a training.
Arguments: the directory of its output, and the names of features. With ``plain`` it uses no
job."""

import json
import os
import pathlib
import sys
import warnings

import lightning
import numpy
import torch
import torchmetrics
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

OUT, USES = pathlib.Path(sys.argv[1]), sys.argv[2:]
IS_PLAIN = "plain" in USES
if not IS_PLAIN:
    import roundhouse.lightning
    from roundhouse.integration import rows

    rows.MOST_BYTES = 10 if "large" in USES else rows.MOST_BYTES
warnings.filterwarnings("ignore")
warnings.filterwarnings("always", message="roundhouse")
torch.manual_seed(5)
points, labels = torch.randn(32, 4), torch.randint(3, (32,))
data = TensorDataset(points, labels)


class Scaled(TensorDataset):
    """Data that the workers of a loader scale."""

    factor = 1.0

    def __getitem__(self, index):
        point, label = super().__getitem__(index)
        return self.factor * point, label


def begin(_):
    torch.utils.data.get_worker_info().dataset.factor = 2.0


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 3)
        # A helper of the script may have got this method.
        self.report = self.log

    def training_step(self, batch, index):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, index, dataloader_idx=0):
        step = self.trainer.global_step
        if not IS_PLAIN and os.environ.get("KILL_IN_EVALUATION") == f"{self.trainer.strategy.job.rank}:{step}":
            os.kill(os.getpid(), 9)
        seen.append([step, dataloader_idx, index])
        # Better in each of the first 4 steps.
        losses = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1], reduction="none") / min(step, 4)
        self.log("val_loss", losses.mean(), prog_bar=True)
        self.log_dict({"most": losses.max(), "both": losses.double().sum()}, on_step=True, on_epoch=True, reduce_fx="max")
        self.log("least", losses.neg().max(), reduce_fx=min)
        # The options may be tensors, and bools of NumPy.
        self.log("weighed", losses.mean(), batch_size=(batch[1] > 0).sum(), on_step=numpy.bool_(True), on_epoch=True)
        # With two workers, only rank 1 computes the last batches.
        if "zero" in USES or "late-zero" in USES and index >= 4:
            self.log("zero", losses.sum(), rank_zero_only=True)
        self.report("half", losses.mean().bfloat16(), batch_size=index + 1, sync_dist=True, add_dataloader_idx=dataloader_idx == 0)
        if index in (1, 3, 5):
            self.log(f"odd_{index}", float("inf") if index == 3 else index / 3, on_step=True, reduce_fx="sum")
        if "metric" in USES:
            self.metric(self.net(batch[0]), batch[1])
            self.log("metric", self.metric)


class Record(Callback):
    """Notes the metrics that callbacks find, bit by bit."""

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            found.append([trainer.global_step, {name: float(value).hex() for name, value in trainer.callback_metrics.items()}])
            drawn.append(float(torch.rand(())))
            names.append(sorted(name for name in trainer.progress_bar_metrics if "val" in name))


class Looks(Callback):
    def on_validation_batch_end(self, *_):
        """Would use the batch."""


class Log(lightning.pytorch.loggers.Logger):
    """Notes what is logged where this process is rank 0."""

    name, version = "log", 0
    entries = []

    @lightning.pytorch.utilities.rank_zero_only
    def log_metrics(self, metrics, step=None):
        self.entries.append([step, {name: float(value).hex() for name, value in metrics.items()}])

    def log_hyperparams(self, *_, **__):
        """Does nothing."""


found, names, seen, drawn = [], [], [], []
module = Module()
if "metric" in USES:
    module.metric = torchmetrics.classification.MulticlassAccuracy(3, average="micro")
module.configure_optimizers = lambda: torch.optim.SGD(module.parameters(), lr=0.0)
strategy = {} if IS_PLAIN else {"strategy": roundhouse.lightning.Elastic(6, divide_validation=True)}
monitor = "val_loss/dataloader_idx_1" if "two" in USES else "val_loss"
best = ModelCheckpoint(OUT / "best", "{step}", monitor=monitor)
trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    callbacks=[EarlyStopping(monitor, patience=2), best, Record(), *([Looks()] if "LOOKS" in os.environ else [])],
    logger=Log(),
    log_every_n_steps=100,
    val_check_interval=2,
    check_val_every_n_epoch=None,
    num_sanity_val_steps=0,
    enable_progress_bar=False,
    enable_model_summary=False,
    default_root_dir=OUT,
    limit_val_batches=5 if "limit" in USES else 1 if "one-batch" in USES else 1.0,
    **strategy,
)
# NUM_COPIES gives one worker another data set.
loaders = DataLoader(ConcatDataset([data] * int(os.environ.get("NUM_COPIES", "1"))), 5)
if "two" in USES:
    loaders = [DataLoader(Scaled(points, labels), 8, num_workers=1, worker_init_fn=begin), loaders]
trainer.fit(module, DataLoader(data, 6 if IS_PLAIN else 2), loaders)
OUT.mkdir(exist_ok=True, parents=True)
rank = 0 if IS_PLAIN else trainer.strategy.job.rank
if rank == 0:
    torch.save(module.state_dict(), OUT / "weights.pt")
written = {"found": found, "names": names, "seen": seen, "drawn": drawn, "log": Log.entries, "last": trainer.global_step}
(OUT / f"rank-{rank}.json").write_text(json.dumps({**written, "best": pathlib.Path(best.best_model_path).name}))
