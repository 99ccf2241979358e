"""The module of both sides that train with a Trainer of Lightning."""
import lightning
from models import loss_of, optimizer_of
from pace import Pace


class Lit(lightning.LightningModule):
    """A model with its loss, which keeps the loss of the last step."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, index):
        loss = loss_of(self.model(batch[0]), batch[1])
        self.last = loss.detach()
        return loss

    def configure_optimizers(self):
        return optimizer_of(self.model)


class Paced(lightning.Callback):
    """Lets the benchmark control the training."""

    def __init__(self, port, rank_of):
        self.port, self.rank_of, self.pace = port, rank_of, None

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.pace = self.pace or Pace(self.port, self.rank_of())
        if not self.pace.continues(module.last):
            trainer.should_stop = True


def trainer(callback, **options):
    """A Trainer without files and logs, on one CPU for each process."""
    return lightning.Trainer(
        accelerator="cpu", max_epochs=100_000, callbacks=[callback], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, **options,
    )
