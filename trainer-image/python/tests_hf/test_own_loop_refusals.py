"""What a job refuses in a script with accelerate before weights change, and the sentences that it
gives."""

import pytest
import roundhouse as rh
import torch
from accelerate.utils import DataLoaderConfiguration, DDPCommunicationHookType, DistributedDataParallelKwargs, GradientAccumulationPlugin
from roundhouse.hf import Accelerator
from small_loop import Script, loader
from small_trainer import Tiny, samples

pytestmark = pytest.mark.usefixtures("ended_loops")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": None}, "needs either epochs=N or steps=N"),
        ({"steps": 3}, "needs either epochs=N or steps=N"),
        ({"mixed_precision": "fp16"}, "mixed_precision='fp16'.*only bf16 is supported"),
        ({"fsdp_plugin": object()}, "fsdp_plugin=.*the whole model is in each worker"),
        ({"deepspeed_plugin": object()}, "deepspeed_plugin=.*the whole model is in each worker"),
        ({"megatron_lm_plugin": object()}, "the whole model is in each worker"),
        ({"parallelism_config": object()}, "the whole model is in each worker"),
        ({"split_batches": True}, "split_batches=True.*Roundhouse deals the samples"),
        ({"step_scheduler_with_optimizer": False}, "let the scheduler count steps"),
        ({"dataloader_config": DataLoaderConfiguration(dispatch_batches=True)}, "dispatch_batches=True.*each worker reads its own samples"),
        ({"dataloader_config": DataLoaderConfiguration(split_batches=True)}, "dataloader_config with split_batches=True"),
        ({"gradient_accumulation_plugin": GradientAccumulationPlugin(2, sync_with_dataloader=False)}, "a step of a job ends with its epoch"),
    ],
)
def test_options_that_a_job_cannot_follow_are_named(options, words):
    with pytest.raises(rh.ConfigError, match=words):
        Accelerator(**{"epochs": 3, "cpu": True, **options})


@pytest.mark.parametrize("name", ["ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_FSDP"])
def test_launcher_of_accelerate_is_refused(monkeypatch, name):
    monkeypatch.setenv(name, "no")
    with pytest.raises(rh.ConfigError, match=rf"under accelerate launch \({name} is set\).*start the script with python"):
        Accelerator(epochs=3)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(samples())


def weighted(dataset):
    return torch.utils.data.DataLoader(dataset, batch_size=10, sampler=torch.utils.data.WeightedRandomSampler([1.0] * 10, 10))


def replaced(dataset):
    return torch.utils.data.DataLoader(dataset, batch_size=10, sampler=torch.utils.data.RandomSampler(dataset, replacement=True))


OTHER = torch.nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dataset": Stream()}, "reads a Stream, which can only be read from its beginning"),
        ({"loader": weighted}, "has a WeightedRandomSampler of its own: Roundhouse deals the samples"),
        ({"loader": replaced}, "has a RandomSampler of its own"),
        ({"loader": loader(batch_size=None)}, "has no batch_size"),
        ({"loader": loader(batch_size=4, drop_last=True), "gradient_accumulation_steps": 3}, "its last step would have fewer than 3 passes"),
        ({"others": [torch.optim.SGD(OTHER.parameters(), lr=0.1)]}, "with 2 optimizers: a step of a job has one update"),
        ({"others": [OTHER]}, "this one has 2 trained models, 1 optimizers and 2 loaders"),
    ],
)
def test_objects_that_a_job_cannot_follow_are_named(options, words):
    with pytest.raises(rh.ConfigError, match=words):
        Script(**options)


def test_loader_before_the_model_is_refused():
    accelerator = Accelerator(epochs=3, cpu=True)
    with pytest.raises(rh.ConfigError, match="needs the model, its optimizer and the training loader in one call"):
        accelerator.prepare(torch.utils.data.DataLoader(samples(), batch_size=10))


def test_scheduler_that_needs_a_metric_is_refused():
    optimizer = torch.optim.SGD(OTHER.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(rh.ConfigError, match="a ReduceLROnPlateau: its step needs a metric"):
        Accelerator(epochs=1, cpu=True).prepare(OTHER, optimizer, torch.utils.data.DataLoader(samples(), batch_size=10), scheduler)


def test_scheduler_that_prepare_did_not_get_is_refused():
    optimizer = torch.optim.SGD(OTHER.parameters(), lr=0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    with pytest.raises(rh.ConfigError, match="a scheduler that accelerator.prepare did not get"):
        Accelerator(epochs=1, cpu=True).prepare(OTHER, optimizer, torch.utils.data.DataLoader(samples(), batch_size=10))


def twice(function):
    return lambda *args: (function(*args), function(*args))


def evaluate(script):
    return lambda *_: next(iter(script.evaluated))


# Each of these changes one part of a script.
LOOPS = {
    "counters": (lambda script: {"begins": False}, "without accelerator.epochs_done or accelerator.steps_done"),
    "no backward": (lambda script: {"backward": lambda loss: None}, "a pass has ended without accelerator.backward"),
    "two backwards": (lambda script: {"backward": twice(script.accelerator.backward)}, "backward twice for one batch"),
    "no step": (lambda script: {"step": lambda: None}, r"optimizer.step\(\) was not called after the last pass"),
    "scaled": (lambda script: {"clip": lambda: [weight.grad.mul_(2) for weight in script.bare.parameters()]}, "the gradients were changed"),
    "torch clips": (
        lambda script: {"clip": lambda: torch.nn.utils.clip_grad_norm_(script.bare.parameters(), 1e-3)}, "clip them with accelerator",
    ),
    "part": (lambda script: {"clip": lambda: script.accelerator.clip_grad_norm_([script.bare.layer.bias], 1.0)}, "without 1 of the optimizer's"),
    "norm": (lambda script: {"clip": lambda: script.accelerator.clip_grad_norm_(script.bare.parameters(), 1.0, norm_type=1)}, "norm_type=1"),
    "value": (lambda script: {"clip": lambda: script.accelerator.clip_grad_value_(script.bare.parameters(), 1.0)}, "clip_grad_value_: the gradients"),
    "gather": (lambda script: {"clip": lambda: script.accelerator.gather(torch.ones(1))}, "gather outside of an evaluation.*accelerator.job.loss"),
    "reduce": (lambda script: {"clip": lambda: script.accelerator.reduce(torch.ones(1))}, "reduce outside of an evaluation"),
    "evaluation": (lambda script: {"clip": evaluate(script)}, "an evaluation within a step"),
    "save": (lambda script: {"clip": lambda: script.accelerator.save_state("run")}, "a job writes and reads its own checkpoints"),
    "load": (lambda script: {"clip": lambda: script.accelerator.load_state("run")}, "a job continues from its own checkpoints"),
    "trigger": (lambda script: {"clip": lambda: script.accelerator.set_trigger()}, "leave the loop after the same step"),
    "skip": (lambda script: {"clip": lambda: script.accelerator.skip_first_batches(script.train, 1)}, "continues where the job is"),
    "register": (lambda script: {"clip": lambda: script.accelerator.register_for_checkpointing(OTHER)}, "call it before accelerator.prepare"),
    "prepare": (lambda script: {"clip": lambda: script.accelerator.prepare(OTHER)}, "a second accelerator.prepare with a trained model"),
    "late": (
        lambda script: {"clip": lambda: torch.optim.lr_scheduler.LambdaLR(script.optimizer, lambda step: 1.0)}, "made after accelerator.prepare",
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_that_a_job_cannot_follow_are_named(name):
    script = Script()
    changed, words = LOOPS[name]
    with pytest.raises(rh.ConfigError, match=words):
        script.epoch(**changed(script))
    assert script.is_untouched()


def test_evaluation_before_the_first_step_is_refused():
    script = Script()
    with pytest.raises(rh.ConfigError, match="an evaluation before the first step"):
        next(iter(script.evaluated))


def test_scheduler_that_counts_epochs_is_refused():
    script = Script()
    with pytest.raises(rh.ConfigError, match="let the scheduler count steps, not epochs"):
        for _ in range(2):
            script.epoch(schedule=lambda: None)


def test_second_step_for_one_batch_is_refused():
    script = Script()
    with pytest.raises(rh.ConfigError, match=r"optimizer.step\(\) twice for one batch"):
        script.epoch(step=twice(lambda: script.optimizer.step()))


def test_backward_outside_of_the_loop_is_refused():
    script = Script()
    with pytest.raises(rh.ConfigError, match="backward outside of the loop over the training loader"):
        script.accelerator.backward(script.bare.layer.weight.sum())


class Sequences(Tiny):
    """Has labels for each word, of which some do not count."""

    def forward(self, x, labels=None):
        return {"loss": None, "logits": self.layer(x)}


def test_own_loss_over_labels_needs_their_number():
    model = Sequences()
    data = [{"x": sample["x"].expand(2, 4), "labels": torch.tensor([index % 3, -100])} for index, sample in enumerate(samples())]

    def loss(batch):
        scores = script.model(**batch)["logits"]
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1), batch["labels"].flatten())

    script = Script(dataset=data, model=model)
    with pytest.raises(rh.ConfigError, match=r"the batch has labels of -100.*Accelerator\(num_items="):
        script.epoch(loss=loss)
    assert script.is_untouched()


def test_hook_of_ddp_is_refused():
    hook = DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.FP16)
    with pytest.raises(rh.ConfigError, match="DistributedDataParallelKwargs with a comm_hook"):
        Script(kwargs_handlers=[hook])
