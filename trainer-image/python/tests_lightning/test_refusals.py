"""What the strategies refuse before weights change, and the sentences that they give."""

import datetime

import lightning
import pytest
import roundhouse as rh
import torch
from lightning.pytorch import callbacks
from roundhouse.lightning import Elastic, internals
from small_module import Tiny, data, loader, trainer
from torch.utils.data import DataLoader, IterableDataset, RandomSampler


def refused(directory, words, module=None, train=None, strategy=None, fit=None, **options):
    """Checks that a training is refused with these words, and leaves the weights as they are."""
    made = trainer(directory, strategy=strategy or Elastic(global_batch_size=5), **options)
    module = module or Tiny()
    before = [weight.clone() for weight in module.parameters()]
    with pytest.raises(rh.ConfigError, match=f"roundhouse.lightning: {words}"):
        made.fit(module, loader() if train is None else train, **(fit or {}))
    assert all(torch.equal(weight, now) for weight, now in zip(before, module.parameters()))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"accumulate_grad_batches": 2},
            r"Trainer\(accumulate_grad_batches=2\): the number of passes .* give Elastic the global_batch_size",
        ),
        ({"fast_dev_run": True}, r"Trainer\(fast_dev_run=True\): it cuts the training; give max_steps=1"),
        ({"overfit_batches": 0.5}, r"Trainer\(overfit_batches=0.5\): the samples of a job are dealt for whole epochs"),
        ({"limit_train_batches": 1}, r"Trainer\(limit_train_batches=1\): the samples of a job are dealt for whole epochs"),
        ({"limit_train_batches": 0.5}, r"Trainer\(limit_train_batches=0.5\): .* train with fewer samples"),
        (
            {"reload_dataloaders_every_n_epochs": 1},
            r"Trainer\(reload_dataloaders_every_n_epochs=1\): the job knows one data set",
        ),
        ({"max_epochs": -1}, r"Trainer\(max_epochs=-1\): a job needs its length"),
        ({"max_time": "00:01:00:00"}, "the callback Timer: the clocks of the workers differ"),
        ({"sync_batchnorm": True}, r"Trainer\(sync_batchnorm=True\): its statistics are those of a single pass"),
        ({"devices": 2}, "devices=2: the job starts the workers, each with one device; leave it out"),
        ({"num_nodes": 2}, "num_nodes=2: the job starts the workers"),
        ({"precision": "16-true"}, "precision='16-true': give one of 32-true, 64-true, bf16-mixed, bf16-true"),
        (
            {"callbacks": [callbacks.StochasticWeightAveraging(0.1)]},
            "the callback StochasticWeightAveraging: it changes weights outside",
        ),
        ({"callbacks": [callbacks.GradientAccumulationScheduler({1: 2})]}, "the callback GradientAccumulationScheduler"),
        ({"callbacks": [callbacks.LearningRateFinder()]}, "the callback LearningRateFinder: start a job for each trial"),
        (
            {"callbacks": [callbacks.ModelCheckpoint(train_time_interval=datetime.timedelta(1))], "enable_checkpointing": True},
            r"ModelCheckpoint\(train_time_interval=...\): the clocks of the workers differ",
        ),
    ],
)
def test_arguments_that_a_job_cannot_follow_are_named(tmp_path, options, words):
    refused(tmp_path, words, **options)


def test_checkpoint_of_lightning_is_refused_before_it_is_loaded(tmp_path):
    made = trainer(tmp_path)
    made.fit(Tiny(), loader())
    made.save_checkpoint(tmp_path / "last.ckpt")
    refused(
        tmp_path,
        r"fit\(ckpt_path=.*last.ckpt.*\): a job continues from its own",
        fit={"ckpt_path": str(tmp_path / "last.ckpt")},
    )


def test_last_checkpoint_is_refused_before_there_is_one(tmp_path):
    refused(tmp_path, r"fit\(ckpt_path='last'\): a job continues from its own", fit={"ckpt_path": "last"})


class Manual(Tiny):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class OwnSchedulerStep(Tiny):
    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step()


class TakesIterator(Tiny):
    def training_step(self, dataloader_iter):
        """Would read the batches itself."""


class NoLoss(Tiny):
    def training_step(self, batch, index):
        return None


class Skips(Tiny):
    def on_train_batch_start(self, batch, index):
        return -1


class Gathers(Tiny):
    def training_step(self, batch, index):
        return self.all_gather(super().training_step(batch, index)).mean()


class NoOptimizer(Tiny):
    def configure_optimizers(self):
        return None


class Optimizers(Tiny):
    """Returns what a function makes of its optimizer."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def configure_optimizers(self):
        return self.make(super().configure_optimizers())


def plateau(optimizer):
    return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer), "monitor": "loss"}


def rarely(optimizer):
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step", "frequency": 2}}


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Manual(), "Manual.automatic_optimization is False: a job repeats a step"),
        (OwnSchedulerStep(), "OwnSchedulerStep.lr_scheduler_step: the job calls step"),
        (TakesIterator(), r"TakesIterator.training_step\(dataloader_iter\): the job deals the batches"),
        (NoLoss(), "training_step has returned no loss"),
        (Skips(), "a step was skipped, such as by on_train_batch_start with -1"),
        (Gathers(), "all_gather in training_step: its result, and so the gradient, would depend on the number of workers"),
        (NoOptimizer(), "configure_optimizers without an optimizer"),
        (
            Optimizers(lambda one: torch.optim.LBFGS([*one.param_groups[0]["params"]])),
            "LBFGS: it calls the passes several times",
        ),
        (Optimizers(plateau), "a ReduceLROnPlateau: its step needs the metric of an evaluation"),
        (Optimizers(rarely), "a StepLR with frequency=2: the commit of each step calls it"),
    ],
)
def test_modules_that_a_job_cannot_follow_are_named(tmp_path, module, words):
    refused(tmp_path, words, module=module)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(data())


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (DataLoader(Stream(), 5), "the train data is a Stream, which can only be read from its beginning"),
        (
            loader(sampler=torch.utils.data.WeightedRandomSampler([1.0] * 10, 10)),
            "the train loader has a WeightedRandomSampler",
        ),
        (loader(sampler=RandomSampler(data(), replacement=True)), "the train loader has a RandomSampler: the job deals"),
        (
            loader(sampler=torch.utils.data.DistributedSampler(data(), 2, 0)),
            "the train loader has a DistributedSampler: the job deals",
        ),
        (loader(batch_size=None), "the train loader has batch_size=None: the job deals"),
        ([data()], "a train loader of type TensorDataset: give one"),
        ({"one": loader(), "two": loader()}, "several train loaders: the samples of a step come from one"),
    ],
)
def test_loaders_that_a_job_cannot_deal_are_named(tmp_path, train, words):
    refused(tmp_path, words, train=train)


class Validated(Tiny):
    def validation_step(self, batch, index):
        """Evaluates nothing."""


def test_part_of_an_evaluation_set_is_refused(tmp_path):
    part = loader(sampler=torch.utils.data.DistributedSampler(data(), 2, 0))
    refused(
        tmp_path,
        "a validation loader with a DistributedSampler",
        module=Validated(),
        fit={"val_dataloaders": part},
        num_sanity_val_steps=0,
    )


def test_another_version_of_lightning_is_refused():
    words = "roundhouse.lightning supports lightning .* and newer, .*; lightning 1.9.5 is installed, whose Callback has no _wrap_closure"
    with pytest.raises(rh.ConfigError, match=words):
        internals.check_names(lightning.pytorch.Callback, ["_wrap_closure"], "1.9.5")
