"""A tiny module, and Trainers and data for it, in this process."""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

NUM_SAMPLES = 10


class Tiny(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.layer = torch.nn.Linear(4, 3, dtype=torch.float64)

    def training_step(self, batch, index):
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def data():
    torch.manual_seed(3)
    return TensorDataset(torch.randn(NUM_SAMPLES, 4, dtype=torch.float64), torch.arange(NUM_SAMPLES) % 3)


def loader(batch_size=5, **options):
    return DataLoader(data(), batch_size, **options)


def trainer(directory, **options):
    """A Trainer of two epochs without logs and files."""
    options = {"max_epochs": 2, "accelerator": "cpu", "logger": False, "enable_checkpointing": False, **options}
    options = {"enable_progress_bar": False, "enable_model_summary": False, **options}
    return lightning.Trainer(default_root_dir=directory, **options)


def weights_after(trainer, module=None, train=None, **options):
    """The weights after a training."""
    module = Tiny() if module is None else module
    trainer.fit(module, loader() if train is None else train, **options)
    return module.layer.weight.detach()
