"""Losses of different kinds, in this process: each gives the weights of the plain Trainer."""

import numpy as np
import pytest
import roundhouse as rh
import torch
import transformers
from accelerate import PartialState
from roundhouse.hf import Elastic, Trainer
from small_trainer import Tiny, arguments, samples


def trained(kind, directory, model, batch_size, **options):
    """The weights after a training with batches of 5."""
    trainer_options = {"global_batch_size": 5} if issubclass(kind, Elastic) else {}
    args = arguments(directory, per_device_train_batch_size=batch_size, **options)
    kind(model=model, args=args, train_dataset=samples(), **trainer_options).train()
    return model.layer.weight.detach()


@pytest.mark.parametrize("divides", [False, True])
def test_passes_add_up_to_the_batch_of_a_plain_trainer(tmp_path, divides):
    wanted = trained(transformers.Trainer, tmp_path, Tiny(divides), 5)
    # Two passes of two samples and one of one sample.
    found = trained(Trainer, tmp_path, Tiny(divides), 2)
    assert torch.allclose(found, wanted, rtol=1e-12, atol=0)


def test_loss_that_is_partly_divided_is_refused(tmp_path):
    model = Tiny(divides=True, router=0.1)
    before = model.layer.weight.clone()
    with pytest.raises(rh.ConfigError, match="a part of it is divided by the number, and a part is not, such as the loss of a router"):
        trained(Trainer, tmp_path, model, 2)
    assert torch.equal(model.layer.weight, before)


def test_mixed_precision_equals_that_of_a_plain_trainer(tmp_path):
    wanted = trained(transformers.Trainer, tmp_path, Tiny().float(), 5, bf16=True)
    model = Tiny().float()
    assert torch.allclose(trained(Trainer, tmp_path, model, 2, bf16=True), wanted, rtol=0, atol=1e-3)
    assert model.computed_in == torch.bfloat16 and model.layer.weight.dtype == torch.float32


class Doubled(transformers.Trainer):
    """A subclass with its own loss and its own step."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        return 2 * super().compute_loss(model, inputs, *args, **kwargs)

    def training_step(self, model, inputs, *args):
        self.num_passes = getattr(self, "num_passes", 0) + 1
        return super().training_step(model, inputs, *args)


class ElasticDoubled(Elastic, Doubled):
    pass


class OwnBackward(transformers.Trainer):
    def training_step(self, model, inputs, *_):
        loss = self.compute_loss(model, self._prepare_inputs(inputs))
        loss.backward()
        return loss.detach()


class ElasticOwnBackward(Elastic, OwnBackward):
    pass


def test_subclass_becomes_elastic_with_the_mixin(tmp_path):
    wanted = trained(Doubled, tmp_path, Tiny(), 5)
    assert torch.allclose(trained(ElasticDoubled, tmp_path, Tiny(), 2), wanted, rtol=1e-12, atol=0)
    with pytest.raises(rh.ConfigError, match="without self.accelerator.backward, which weighs the loss"):
        trained(ElasticOwnBackward, tmp_path, Tiny(), 2)


class Silent(transformers.Trainer):
    """Makes its optimizer and its scheduler, and returns nothing."""

    def create_optimizer(self, *_, **__):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def create_scheduler(self, *_, **__):
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 / (step + 1))


class ElasticSilent(Elastic, Silent):
    pass


def test_methods_that_return_nothing_are_followed(tmp_path):
    wanted = trained(Silent, tmp_path, Tiny(), 5)
    assert torch.allclose(trained(ElasticSilent, tmp_path, Tiny(), 2), wanted, rtol=1e-12, atol=0)


class Noisy(Tiny):
    """A loss with noise of NumPy, which is divided by the number of items."""

    def forward(self, x, labels=None, **others):
        return super().forward(x + np.random.rand(), labels, **others)


def test_loss_with_noise_of_numpy_is_measured(tmp_path):
    np.random.seed(1)
    model = Noisy(divides=True)
    before = model.layer.weight.clone()
    assert not torch.equal(trained(Trainer, tmp_path, model, 2), before)


def test_trainer_trains_twice_in_a_notebook(tmp_path):
    trainer = Trainer(model=Tiny(), args=arguments(tmp_path), train_dataset=samples(), global_batch_size=5)
    plain = transformers.Trainer(model=Tiny(), args=arguments(tmp_path, per_device_train_batch_size=5), train_dataset=samples())
    for _ in range(2):
        assert trainer.train().global_step == plain.train().global_step == 3
        assert torch.allclose(trainer.model.layer.weight, plain.model.layer.weight, rtol=1e-12, atol=0)


def twice(kind, directory, **options):
    """A trainer whose second training has another learning rate, and begins with a fresh model."""
    every = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "loss"}
    args = arguments(directory, **every, **best, learning_rate=1.0, max_steps=12, **options)
    elastic = {"global_batch_size": 10} if issubclass(kind, Elastic) else {}
    stop = transformers.EarlyStoppingCallback(2)
    trainer = kind(model_init=lambda: Tiny(), args=args, train_dataset=samples(), eval_dataset=samples(), callbacks=[stop], **elastic)
    trainer.train()
    args.learning_rate = 0.001
    trainer.train()
    return trainer


def test_second_training_forgets_the_best_model_of_the_first(tmp_path):
    wanted = twice(transformers.Trainer, tmp_path / "plain", per_device_train_batch_size=10)
    found = twice(Trainer, tmp_path / "elastic", per_device_train_batch_size=3)
    for name in ("global_step", "best_global_step"):
        assert getattr(found.state, name) == getattr(wanted.state, name), name
    assert found.state.best_metric == pytest.approx(wanted.state.best_metric, rel=1e-9)
    assert torch.allclose(found.model.layer.weight, wanted.model.layer.weight, rtol=1e-9, atol=0)


def test_rank_that_does_not_write_leaves_no_directory(tmp_path):
    args = arguments(tmp_path, save_strategy="steps", save_steps=2)
    trainer = Trainer(model=Tiny(), args=args, train_dataset=samples(), global_batch_size=5, callbacks=[SecondRank()])
    trainer.train()
    assert not list(tmp_path.glob("checkpoint-*"))


class SecondRank(transformers.TrainerCallback):
    """Makes this process rank 1 for what follows a step."""

    def on_step_end(self, args, state, control, **_):
        PartialState().process_index = 1

    def on_train_end(self, args, state, control, **_):
        PartialState().process_index = 0


def test_training_that_is_already_complete_is_named(tmp_path):
    join = {"checkpoint_dir": str(tmp_path / "state"), "checkpoint_every_steps": 1}
    trainer = Trainer(model=Tiny(), args=arguments(tmp_path), train_dataset=samples(), global_batch_size=5, join=join)
    trainer.train()
    with pytest.warns(UserWarning, match=r"no step is left to train: the training in checkpoint_dir .*state.* is complete"):
        trainer.train()


def test_process_alone_uses_one_of_several_gpus(tmp_path):
    wanted = trained(transformers.Trainer, tmp_path, Tiny(divides=True), 5)
    args, model = arguments(tmp_path, per_device_train_batch_size=5), Tiny(divides=True)
    assert args.device.type == "cpu"
    args._n_gpu = 2  # The Trainer would multiply the loss by this number, and make a DataParallel.
    Trainer(model=model, args=args, train_dataset=samples(), global_batch_size=5).train()
    assert torch.allclose(model.layer.weight, wanted, rtol=1e-12, atol=0)
