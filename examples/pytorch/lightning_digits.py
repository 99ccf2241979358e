"""Learns handwritten digits with a Trainer of Lightning, elastic: workers may die, leave and
join."""
import gzip
import os
import pathlib

import lightning as L
import roundhouse.lightning
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

DATA = pathlib.Path(os.environ.get("DATA") or pathlib.Path(__file__).parent.parent / "data" / "digits")
OUT = pathlib.Path(os.environ.get("OUT", "digits"))


def read(name, header):
    """The bytes of an IDX file after its header."""
    file = bytearray(gzip.decompress((DATA / name).read_bytes()))
    return torch.frombuffer(file, dtype=torch.uint8)[header:]


def digits(split):
    """Images, [N, 1, 8, 8] from 0 to 1, and labels, [N]."""
    labels = read(f"{split}-labels-idx1-ubyte.gz", 8).long()
    images = read(f"{split}-images-idx3-ubyte.gz", 16).view(-1, 1, 8, 8).float() / 255
    return TensorDataset(images, labels)


class Digits(L.LightningModule):
    def __init__(self):
        super().__init__()
        layers = torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16 * 8 * 8, 10)
        self.net = torch.nn.Sequential(*layers)

    def training_step(self, batch):
        images, labels = batch
        loss = cross_entropy(self.net(images), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch):
        images, labels = batch
        self.log("accuracy", (self.net(images).argmax(1) == labels).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main():
    L.seed_everything(1)
    trainer = L.Trainer(
        strategy=roundhouse.lightning.Elastic(global_batch_size=64),
        max_epochs=int(os.environ.get("EPOCHS", "20")),
        accelerator="cpu",
        default_root_dir=OUT,
        logger=L.pytorch.loggers.CSVLogger(OUT),
        log_every_n_steps=19,
    )
    module = Digits()
    test = DataLoader(digits("t10k"), batch_size=64)
    trainer.fit(module, DataLoader(digits("train"), batch_size=32, shuffle=True), test)
    if trainer.is_global_zero:
        torch.save(module.state_dict(), OUT / "weights.pt")
    (metrics,) = trainer.validate(module, test, verbose=False)
    print(f"{metrics['accuracy']:.1%} of the test images are read right")


if __name__ == "__main__":
    main()
