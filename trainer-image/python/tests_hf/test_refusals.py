"""What the elastic Trainer refuses before weights change, and the sentences that it gives."""

import pytest
import roundhouse as rh
import torch
import transformers
from roundhouse.hf import Elastic, Trainer
from roundhouse.hf.internals.libraries import check_methods
from roundhouse.hf.internals.trainer import METHODS
from small_trainer import Tiny, arguments, samples


def trainer(directory, model=None, train_dataset=None, **options):
    trainer_options = {name: options.pop(name) for name in ("optimizers", "callbacks") if name in options}
    return Trainer(
        model=model or Tiny(),
        args=arguments(directory, **options),
        train_dataset=train_dataset or samples(),
        global_batch_size=4,
        **trainer_options,
    )


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("auto_find_batch_size", True, "a smaller batch would change the training"),
        ("average_tokens_across_devices", False, "the loss would depend on the number of workers"),
        ("dataloader_in_order", False, "steps would get the samples of other steps"),
        ("deepspeed", "zero.json", "the whole model is in each worker"),
        ("enable_jit_checkpoint", True, "Roundhouse handles SIGTERM"),
        ("eval_on_start", True, "a worker that joins later would evaluate while the others train"),
        ("fsdp", True, "call fully_shard in the script"),
        ("gradient_accumulation_steps", 2, "give Trainer the global_batch_size"),
        ("include_num_input_tokens_seen", "all", "each worker would count its own tokens alone"),
        ("lr_scheduler_type", "greedy", "needs the metric"),
        ("lr_scheduler_type", "reduce_lr_on_plateau", "needs the metric of an evaluation"),
        ("mixed_precision", "fp16", "only bf16 is supported"),
        ("optim", "lomo", "it changes weights outside of the optimizer's step"),
        ("optim", "galore_adamw_layerwise", "it changes weights outside of the optimizer's step"),
        ("parallelism_config", "any", "call fully_shard in the script"),
        ("train_sampling_strategy", "group_by_length", 'give "random" or "sequential"'),
    ],
)
def test_arguments_that_a_job_cannot_follow_are_named(tmp_path, name, value, words):
    args = arguments(tmp_path)
    # Some values need a GPU, another package or a newer version of transformers.
    setattr(args, name, value)
    with pytest.raises(rh.ConfigError, match=rf"TrainingArguments\({name}={str(value)!r}\): .*{words}"):
        Trainer(model=Tiny(), args=args, train_dataset=samples(), global_batch_size=4)


def test_missing_batch_size_is_explained(tmp_path):
    with pytest.raises(rh.ConfigError, match="needs global_batch_size=N, the samples of a step over all workers"):
        Trainer(model=Tiny(), args=arguments(tmp_path), train_dataset=samples())


def test_batches_that_accelerate_splits_are_refused(tmp_path):
    with pytest.raises(rh.ConfigError, match="accelerator_config with split_batches"):
        trainer(tmp_path, accelerator_config={"split_batches": True})


class Early(transformers.TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, **_):
        """Would look at the gradients."""


class AfterOptimizer(transformers.TrainerCallback):
    def on_optimizer_step(self, args, state, control, **_):
        """Would look at the gradients."""


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(samples())


class OwnSampler(Trainer):
    def _get_train_sampler(self, *_):
        return torch.utils.data.WeightedRandomSampler([1.0] * 10, 10)


class OnlyTraining(Tiny):
    def forward(self, x, labels=None, **others):
        found = super().forward(x, labels, **others)
        return found if self.training else {"logits": found["logits"]}


class Counting(Tiny):
    """The loss grows with each call."""

    num_calls = 0

    def forward(self, x, labels=None, **others):
        found = super().forward(x, labels, **others)
        self.num_calls += 1
        return {**found, "loss": found["loss"] * self.num_calls}


def plateau():
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {"model": model, "optimizers": (optimizer, torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer))}


@pytest.mark.parametrize(
    ("options", "call", "words"),
    [
        ({}, {"resume_from_checkpoint": "run/checkpoint-2"}, "a job continues from its own checkpoints"),
        ({}, {"resume_from_checkpoint": True}, "a job continues from its own checkpoints"),
        ({}, {"trial": {"learning_rate": 1.0}}, "start a job for each trial"),
        ({"train_dataset": Stream()}, {}, "train_dataset is a Stream, which can only be read from its beginning"),
        ({"callbacks": [Early()]}, {}, "Early.on_pre_optimizer_step would run after the step of the optimizer"),
        ({"callbacks": [AfterOptimizer()]}, {}, "AfterOptimizer.on_optimizer_step would run after the step of the optimizer"),
        ({"model": OnlyTraining()}, {}, "the first step measures the loss in eval mode, and that fails: The model did not return a loss"),
        ({"model": Counting()}, {}, "in eval mode, with the same random numbers, the loss of a pass is .* and then"),
        (plateau(), {}, "with a ReduceLROnPlateau: its step needs the metric"),
    ],
)
def test_trainings_that_a_job_cannot_follow_are_named(tmp_path, options, call, words):
    made = trainer(tmp_path, **options)
    before = [weight.clone() for weight in made.model.parameters()]
    with pytest.raises(rh.ConfigError, match=words):
        made.train(**call)
    assert all(torch.equal(weight, now) for weight, now in zip(before, made.model.parameters()))


def test_sampler_of_a_subclass_is_named(tmp_path):
    made = OwnSampler(model=Tiny(), args=arguments(tmp_path), train_dataset=samples(), global_batch_size=4)
    with pytest.raises(rh.ConfigError, match="has a WeightedRandomSampler: Roundhouse deals the samples"):
        made.train()


class OwnLoader(Trainer):
    def get_train_dataloader(self):
        return torch.utils.data.DataLoader(self.train_dataset, batch_size=4)


class OwnStep(Trainer):
    def training_step(self, model, inputs, *args):
        return super().training_step(model, inputs, *args)


@pytest.mark.parametrize(("kind", "name"), [(OwnLoader, "get_train_dataloader"), (OwnStep, "training_step")])
def test_subclass_that_hides_an_elastic_method_is_refused(tmp_path, kind, name):
    words = rf"{kind.__name__}.{name} replaces .* into a subclass of transformers.Trainer, .*\(Elastic, {kind.__name__}\)"
    with pytest.raises(rh.ConfigError, match=words):
        kind(model=Tiny(), args=arguments(tmp_path), train_dataset=samples(), global_batch_size=4)


def test_search_of_hyperparameters_is_refused(tmp_path):
    with pytest.raises(rh.ConfigError, match="start a job for each trial"):
        trainer(tmp_path).hyperparameter_search(lambda trial: {})


def test_older_trainer_is_refused_with_its_version():
    words = "roundhouse.hf supports transformers 5.5 and newer .*; transformers 4.57.6 is installed, whose TrainerCallback has no _clip_grad"
    with pytest.raises(rh.ConfigError, match=words):
        check_methods(transformers.TrainerCallback, METHODS, "transformers 4.57.6")


class StepsItself(transformers.Trainer):
    def training_step(self, model, inputs, *args):
        loss = super().training_step(model, inputs, *args)
        self.optimizer.step()
        return loss


class ElasticStepsItself(Elastic, StepsItself):
    pass


def test_step_of_the_optimizer_within_a_pass_is_refused(tmp_path):
    made = ElasticStepsItself(model=Tiny(), args=arguments(tmp_path), train_dataset=samples(), global_batch_size=4)
    before = made.model.layer.weight.clone()
    with pytest.raises(rh.ConfigError, match=r"SGD.step\(\) in training_step or compute_loss: the job steps it once"):
        made.train()
    assert torch.equal(made.model.layer.weight, before)


class EndsEpoch(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        control.should_epoch_stop = True


def test_callback_that_ends_an_epoch_is_refused(tmp_path):
    with pytest.raises(rh.ConfigError, match="control.should_epoch_stop: the samples of a job are dealt for whole epochs"):
        trainer(tmp_path, callbacks=[EndsEpoch()]).train()
