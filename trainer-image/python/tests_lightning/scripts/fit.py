"""Trains a small network in 64 bits with a Trainer of Lightning. Arguments: the directory of its
output, and the names of features. With ``plain`` it uses no job, and one process makes the same
steps."""

import json
import os
import pathlib
import sys
import warnings

import lightning
import torch
import torchmetrics
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

OUT, USES = pathlib.Path(sys.argv[1]), sys.argv[2:]
IS_PLAIN = "plain" in USES
if not IS_PLAIN:
    import roundhouse.lightning

warnings.filterwarnings("ignore", category=lightning.pytorch.utilities.warnings.PossibleUserWarning)
# An epoch has 6 steps, and the last one 2 samples.
BATCH, NUM_SAMPLES, EPOCHS = 6, 32, 3
torch.manual_seed(5)
points = torch.randn(NUM_SAMPLES, 4, dtype=torch.float64)
labels = torch.randint(3, (NUM_SAMPLES,))
data = TensorDataset(points, labels)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(3, average="micro")
        self.val_accuracy = self.accuracy.clone()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))

    def training_step(self, batch, index):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist="clip" in USES)
        if "accuracy" in USES:
            self.accuracy(self.net(x), y)
            self.log("accuracy", self.accuracy, on_step=True, on_epoch=True)
            self.log("samples", float(len(x)), reduce_fx="sum", on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        if (
            not IS_PLAIN
            and os.environ.get("KILL_IN_EVALUATION") == f"{self.trainer.strategy.job.rank}:{self.trainer.global_step}"
        ):
            os.kill(os.getpid(), 9)
        if "accuracy" in USES:
            self.val_accuracy(self.net(x), y)
            self.log("val_accuracy", self.val_accuracy)
        self.log("val_loss", torch.nn.functional.cross_entropy(self.net(x), y), sync_dist=True)

    def on_before_optimizer_step(self, optimizer):
        norms = [parameter.grad.norm() for parameter in self.net.parameters()]
        self.log("norm", torch.stack(norms).norm())

    def configure_optimizers(self):
        kind = torch.optim.AdamW if "adamw" in USES else torch.optim.SGD
        optimizer = kind(self.net.parameters(), lr=0.05)
        if "epochs" in USES:
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Record(Callback):
    """Notes the steps that this process sees."""

    steps, epochs, rates, validated = [], [], [], []

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.steps.append([trainer.global_step, trainer.current_epoch, index])
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])
        if "average" in USES:
            average.update_parameters(module.net)

    def on_train_epoch_end(self, trainer, module):
        self.epochs.append([trainer.current_epoch, float(trainer.callback_metrics["loss_epoch"])])

    def on_validation_end(self, trainer, module):
        if not trainer.sanity_checking:
            self.validated.append([trainer.global_step, float(trainer.callback_metrics["val_loss"])])


class Log(lightning.pytorch.loggers.Logger):
    """Notes what is logged where this process is rank 0."""

    name, version = "log", 0
    entries = []

    @lightning.pytorch.utilities.rank_zero_only
    def log_metrics(self, metrics, step=None):
        self.entries.append([step, metrics])

    def log_hyperparams(self, *_, **__):
        """Does nothing."""


class Orders:
    """The batches of given epochs."""

    def __init__(self, orders):
        self.orders = iter(orders)

    def __len__(self):
        return -(-NUM_SAMPLES // BATCH)

    def __iter__(self):
        order = next(self.orders)
        return iter([order[start : start + BATCH] for start in range(0, NUM_SAMPLES, BATCH)])


callbacks, options = [Record()], {}
if "stop" in USES:
    # No evaluation after the first one is better by so much: training stops after step 9.
    callbacks.append(EarlyStopping("val_loss", min_delta=10.0, patience=2))
    callbacks.append(ModelCheckpoint(OUT / "best", "{step}", monitor="val_loss"))
    options = {"val_check_interval": 3, "check_val_every_n_epoch": None}
if "clip" in USES:
    options["gradient_clip_val"] = 0.3
if "steps" in USES:
    options["max_steps"] = 14
module = Module()
average = torch.optim.swa_utils.AveragedModel(module.net.to(torch.float64))
if not IS_PLAIN:
    state = {"average": average} if "average" in USES else {}
    options["strategy"] = roundhouse.lightning.Elastic(global_batch_size=BATCH, state=state)
trainer = lightning.Trainer(
    max_epochs=EPOCHS,
    accelerator="cpu",
    precision="64-true",
    callbacks=callbacks,
    logger=[Log(), lightning.pytorch.loggers.CSVLogger(OUT, version="all")] if "csv" in USES else Log(),
    log_every_n_steps=1,
    enable_checkpointing="stop" in USES,
    enable_progress_bar=False,
    enable_model_summary=False,
    default_root_dir=OUT,
    **options,
)
loader = DataLoader(data, BATCH if IS_PLAIN else 2)
if "shuffle" in USES:
    if IS_PLAIN:
        import roundhouse

        sampler = roundhouse.Sampler(NUM_SAMPLES, NUM_SAMPLES, epochs=EPOCHS)
        orders = [sampler.plan(epoch, epoch * NUM_SAMPLES, (0, 0, 1)).indices for epoch in range(EPOCHS)]
        loader = DataLoader(data, batch_sampler=Orders(orders))
    else:
        loader = DataLoader(data, 2, shuffle=True, num_workers=1)
trainer.fit(module, loader, DataLoader(data, 5))
rank = 0 if IS_PLAIN else trainer.strategy.job.rank
OUT.mkdir(exist_ok=True, parents=True)
if rank == 0:
    torch.save(module.state_dict(), OUT / "weights.pt")
best = pathlib.Path(callbacks[-1].best_model_path).name if "stop" in USES else None
found = {name: getattr(Record, name) for name in ("steps", "epochs", "rates", "validated")}
total = sum(float(weight.detach().abs().sum()) for weight in average.parameters())
(OUT / f"rank-{rank}.json").write_text(json.dumps({**found, "log": Log.entries, "last": trainer.global_step, "best": best, "average": total}))
