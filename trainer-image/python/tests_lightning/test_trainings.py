"""Trainings in this process, without a job: each gives the weights of the plain Trainer."""

import lightning
import pytest
import roundhouse as rh
import torch
from lightning.pytorch import callbacks
from roundhouse.lightning import Elastic, internals
from small_module import Tiny, loader, trainer, weights_after


def elastic(directory, **options):
    return trainer(directory, strategy=Elastic(global_batch_size=5), **options)


@pytest.mark.parametrize("algorithm", ["norm", "value"])
@pytest.mark.parametrize("batch_size", [2, 5, 8])
def test_passes_add_up_to_the_batch_of_a_plain_trainer(tmp_path, batch_size, algorithm):
    options = {"gradient_clip_val": 0.05, "gradient_clip_algorithm": algorithm}
    wanted = weights_after(trainer(tmp_path, **options))
    assert torch.allclose(weights_after(elastic(tmp_path, **options), train=loader(batch_size)), wanted, rtol=1e-12, atol=0)


class OwnClipping(Tiny):
    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        torch.nn.utils.clip_grad_norm_(self.parameters(), gradient_clip_val / 10)


class WarmsUp(Tiny):
    """Sets the rate itself, as manuals of Lightning show it."""

    def optimizer_step(self, epoch, index, optimizer, optimizer_closure):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (self.trainer.global_step + 1)
        optimizer.step(closure=optimizer_closure)


class Returns(Tiny):
    """Returns more than a loss, and has a method for its backward pass."""

    def training_step(self, batch, index):
        return {"loss": super().training_step(batch, index), "index": index}

    def backward(self, loss):
        (2 * loss).backward()


@pytest.mark.parametrize("kind", [OwnClipping, WarmsUp, Returns])
def test_hooks_of_a_module_are_followed(tmp_path, kind):
    wanted = weights_after(trainer(tmp_path, gradient_clip_val=0.5), kind())
    found = weights_after(elastic(tmp_path, gradient_clip_val=0.5), kind(), loader(2))
    assert torch.allclose(found, wanted, rtol=1e-12, atol=0)


class Records(callbacks.Callback):
    """Notes the losses that callbacks get."""

    def __init__(self):
        self.losses, self.batches = [], []

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.losses.append(float(outputs["loss"]))
        self.batches.append(len(batch[0]))


def test_outputs_of_a_step_have_the_loss_of_all_passes(tmp_path):
    plain, own = Records(), Records()
    weights_after(trainer(tmp_path, callbacks=[plain]))
    weights_after(elastic(tmp_path, callbacks=[own]), train=loader(2))
    assert own.losses == pytest.approx(plain.losses, rel=1e-12)
    assert own.batches == [2] * 4  # A callback gets the batch of the first pass.


class Labelled(Tiny):
    """Returns the labels of its pass."""

    def training_step(self, batch, index):
        return {"loss": super().training_step(batch, index), "labels": batch[1]}


class Lengths(callbacks.Callback):
    """Notes how many samples the batch of a step and its outputs have."""

    def __init__(self):
        self.found = set()

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.found.add((len(batch[0]), len(outputs["labels"])))


def test_callback_gets_first_batch_and_last_outputs(tmp_path):
    lengths = Lengths()
    weights_after(elastic(tmp_path, callbacks=[lengths]), Labelled(), loader(2))
    # The 5 samples of a step are passes of 2, 2 and 1.
    assert lengths.found == {(2, 1)}


def test_mixed_precision_equals_that_of_a_plain_trainer(tmp_path):
    wanted = weights_after(trainer(tmp_path, precision="bf16-mixed"), Tiny().float(), single(5))
    found = weights_after(elastic(tmp_path, precision="bf16-mixed"), Tiny().float(), single(2))
    assert found.dtype == torch.float32 and torch.allclose(found, wanted, rtol=0, atol=1e-3)


def single(batch_size):
    """A loader of 32 bits."""
    made = loader(batch_size)
    made.dataset.tensors = (made.dataset.tensors[0].float(), made.dataset.tensors[1])
    return made


class Validated(Tiny):
    def validation_step(self, batch, index):
        self.log("val_loss", self.training_step(batch, index))


def test_trainer_is_as_before_after_a_training(tmp_path):
    made = elastic(tmp_path, gradient_clip_val=0.5)
    module = Validated()
    weights_after(made, module, val_dataloaders=loader())
    assert made.callbacks == [] and made.gradient_clip_val == 0.5 and made.limit_val_batches == 1.0
    (found,) = made.validate(module, loader(), verbose=False)
    assert found["val_loss"] > 0


def test_trainer_trains_twice_in_a_notebook(tmp_path):
    module = Tiny()
    once = weights_after(elastic(tmp_path), module).clone()
    assert not torch.equal(weights_after(elastic(tmp_path), module), once)


def test_error_of_a_module_ends_the_membership(tmp_path):
    class Broken(Tiny):
        def training_step(self, batch, index):
            raise ValueError("a bad sample")

    with pytest.raises(ValueError, match="a bad sample"):
        weights_after(elastic(tmp_path), Broken())
    weights_after(elastic(tmp_path))


def test_training_of_a_process_continues_from_a_checkpoint(tmp_path):
    def strategy():
        return Elastic(global_batch_size=5, join={"checkpoint_dir": str(tmp_path / "state"), "checkpoint_every_steps": 1})

    wanted = weights_after(trainer(tmp_path, max_epochs=4))
    weights_after(trainer(tmp_path, strategy=strategy(), max_steps=3, max_epochs=4))
    made = trainer(tmp_path, strategy=strategy(), max_epochs=4)
    assert torch.allclose(weights_after(made, Tiny()), wanted, rtol=1e-12, atol=0)
    assert made.global_step == 8 and made.current_epoch == 4


def test_seed_of_lightning_is_that_of_the_samples(tmp_path):
    def order(seed):
        lightning.seed_everything(seed, verbose=False)
        return weights_after(elastic(tmp_path, max_epochs=1), train=loader(shuffle=True)).clone()

    assert torch.equal(order(1), order(1)) and not torch.equal(order(1), order(2))


class Data(lightning.LightningDataModule):
    def train_dataloader(self):
        return loader(2)


class Decays(Tiny):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def test_data_module_and_rate_monitor_work_as_before(tmp_path):
    def rates(strategy, **data):
        monitor = callbacks.LearningRateMonitor()
        log = lightning.pytorch.loggers.CSVLogger(tmp_path)
        made = trainer(tmp_path, callbacks=[monitor], logger=log, log_every_n_steps=1, strategy=strategy)
        module = Decays()
        made.fit(module, **data)
        return monitor.lrs, module.layer.weight.detach()

    known, wanted = rates("auto", train_dataloaders=loader())
    found, weights = rates(Elastic(global_batch_size=5), datamodule=Data())
    assert found == known and torch.allclose(weights, wanted, rtol=1e-12, atol=0)


def test_logged_sum_is_over_the_samples_of_all_passes(tmp_path):
    class Counts(Tiny):
        def training_step(self, batch, index):
            self.log("samples", float(len(batch[0])), reduce_fx="sum")
            self.log("most", batch[0].max(), reduce_fx="max", on_step=True)
            return super().training_step(batch, index)

    plain, own = trainer(tmp_path), elastic(tmp_path)
    weights_after(plain, Counts())
    weights_after(own, Counts(), loader(2))
    assert {name: float(value) for name, value in own.callback_metrics.items()} == {
        name: float(value) for name, value in plain.callback_metrics.items()
    }


class BecomesFirst(callbacks.Callback):
    """Makes this process another rank until its second step."""

    def on_train_start(self, trainer, module):
        internals.show_progress(trainer, False)

    def on_train_batch_end(self, trainer, module, *_):
        if trainer.global_step == 1:
            internals.show_progress(trainer, True)


def test_progress_bar_of_a_new_first_rank_is_shown(tmp_path):
    made = elastic(tmp_path, callbacks=[BecomesFirst()], enable_progress_bar=True, max_epochs=1)
    weights_after(made)
    bar = made.progress_bar_callback.train_progress_bar
    # A bar that is not shown counts nothing.
    assert bar.n == bar.total == 2


def test_length_of_zero_steps_is_refused(tmp_path):
    with pytest.raises(rh.ConfigError, match="steps is 0"):
        weights_after(elastic(tmp_path, max_epochs=0))


def test_worker_init_fn_of_the_train_loader_is_called(tmp_path):
    def begin(number):
        (tmp_path / f"worker-{number}").touch()

    weights_after(elastic(tmp_path), train=loader(num_workers=1, worker_init_fn=begin))
    assert (tmp_path / "worker-0").exists()
