"""Validations that the workers cannot divide, and the sentences that say why."""

import lightning
import pytest
import torch
import torchmetrics
from lightning.pytorch.utilities import CombinedLoader
from roundhouse.lightning import Elastic
from small_module import Tiny, data, loader, trainer
from torch.utils.data import DataLoader, IterableDataset, RandomSampler


class Validated(Tiny):
    def validation_step(self, batch, index, dataloader_idx=0):
        self.log("one", 1.0)


class Ends(Validated):
    def on_validation_epoch_end(self):
        """Would use what the batches have left."""


class Transfers(Validated):
    def on_before_batch_transfer(self, batch, dataloader_idx):
        return batch


class TakesIterator(Tiny):
    def validation_step(self, dataloader_iter):
        next(dataloader_iter)


class Measured(Validated):
    def __init__(self):
        super().__init__()
        self.mean = torchmetrics.MeanMetric()


class Looks(lightning.Callback):
    def on_validation_batch_end(self, *_):
        """Would use the batch."""


class Stream(IterableDataset):
    def __iter__(self):
        return iter(data())


class Loader(DataLoader):
    def __iter__(self):
        return super().__iter__()


@pytest.mark.parametrize(
    ("module", "val", "callbacks", "words"),
    [
        (Ends(), None, [], "Ends.on_validation_epoch_end may need each batch; remove it, or leave the option out"),
        (Transfers(), None, [], "Transfers.on_before_batch_transfer may need each batch"),
        (Validated(), None, [Looks()], "Looks.on_validation_batch_end may need each batch"),
        (TakesIterator(), None, [], r"validation_step\(dataloader_iter\) reads the batches; let it take batch and batch_idx"),
        (Measured(), None, [], "the module has a MeanMetric of torchmetrics, .*; log tensors in place of it"),
        (torch.compile(Validated(), backend="eager"), None, [], "the whole module is compiled; compile a part of it"),
        (Validated(), CombinedLoader([loader()], "max_size"), [], "the CombinedLoader is not sequential; give it"),
        (Validated(), loader(sampler=RandomSampler(data())), [], "a validation loader has a RandomSampler; give a DataLoader"),
        (Validated(), [loader(), loader(batch_size=None)], [], "a validation loader has batch_size=None"),
        (Validated(), DataLoader(Stream(), 5), [], "a validation loader has a Stream, which is an IterableDataset"),
        (Validated(), Loader(data(), 5), [], "a validation loader has the type Loader"),
    ],
)
@pytest.mark.filterwarnings("ignore::lightning.pytorch.utilities.warnings.PossibleUserWarning")
def test_what_keeps_workers_from_dividing_is_named_once(tmp_path, module, val, callbacks, words):
    made = trainer(tmp_path, strategy=Elastic(5, divide_validation=True), callbacks=callbacks)
    with pytest.warns(UserWarning, match=f"divide_validation=True: each worker runs the whole validation: {words}") as found:
        made.fit(module, loader(), loader() if val is None else val)
    assert sum("divide_validation" in str(one.message) for one in found) == 1


def test_progress_bar_keeps_no_worker_from_dividing(tmp_path, recwarn):
    strategy = Elastic(5, divide_validation=True)
    trainer(tmp_path, strategy=strategy, enable_progress_bar=True).fit(Validated(), loader(), loader())
    assert not [one for one in recwarn if "divide_validation" in str(one.message)]
