"""A loop of the script over roundhouse.hf.Accelerator, in this process: what it refuses before
weights change, and what it leaves to accelerate."""

import accelerate
import pytest
import roundhouse as rh
import torch
from accelerate.utils import DataLoaderConfiguration, DDPCommunicationHookType, DistributedDataParallelKwargs, GradientAccumulationPlugin
from roundhouse.hf import Accelerator
from roundhouse.hf.starting import Membership
from safetensors.torch import load_file
from small_trainer import Tiny, samples


@pytest.fixture(autouse=True)
def ends(monkeypatch):
    """A script that fails ends its membership with its process."""
    begun = []
    accelerate.state.AcceleratorState._reset_state()
    monkeypatch.setattr("roundhouse.hf.internals.accelerator.Membership", lambda *args: begun.append(Membership(*args)) or begun[-1])
    yield
    for one in begun:
        one.fail(RuntimeError("the test is over"))


class Script:
    """A small script of three steps, whose parts a test replaces."""

    def __init__(self, dataset=None, model=None, scheduler=True, loader=None, others=(), **options):
        options = {"epochs": 3, "cpu": True, **options}
        self.accelerator = Accelerator(**options)
        self.bare = model or Tiny()
        self.before = [weight.detach().clone() for weight in self.bare.parameters()]
        optimizer = torch.optim.SGD(self.bare.parameters(), lr=0.1)
        schedulers = [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))] if scheduler else []
        dataset = dataset or samples()
        train = loader(dataset) if loader else torch.utils.data.DataLoader(dataset, batch_size=10)
        evaluated = torch.utils.data.DataLoader(samples(), batch_size=4)
        prepared = self.accelerator.prepare(self.bare, optimizer, train, evaluated, *schedulers, *others)
        self.model, self.optimizer, self.train, self.evaluated, *self.schedulers = prepared

    def epoch(self, loss=None, backward=None, clip=None, step=None, schedule=None, after=None, begins=True):
        if begins:
            assert self.accelerator.epochs_done == 0
        for batch in self.train:
            found = (loss or (lambda batch: self.model(**batch)["loss"]))(batch)
            (backward or self.accelerator.backward)(found)
            if clip:
                clip()
            (step or self.optimizer.step)()
            (schedule or (lambda: [one.step() for one in self.schedulers]))()
            if after:
                after()

    def is_untouched(self):
        return all(torch.equal(weight, before) for weight, before in zip(self.bare.parameters(), self.before))


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


def loader(**options):
    return lambda dataset: torch.utils.data.DataLoader(dataset, **options)


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
        lambda script: {"clip": lambda: torch.nn.utils.clip_grad_norm_(script.bare.parameters(), 1e-3)}, "use|clip them with accelerator",
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


def trained(accelerator, batch_size, **options):
    """The weights after three epochs of a script that runs with both classes."""
    model = Tiny(**options).to(torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(samples(), batch_size=batch_size)
    net, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    norms = []
    for _ in range(getattr(accelerator, "epochs_done", 0), 3):
        for batch in loader:
            with accelerator.accumulate(net):
                accelerator.backward(net(**batch)["loss"])
                if accelerator.sync_gradients:
                    norms.append(accelerator.clip_grad_norm_(net.parameters(), 0.05))
                optimizer.step()
                optimizer.zero_grad()
    accelerator.end_training()
    return accelerator.unwrap_model(net).layer.weight.detach(), [float(norm) for norm in norms]


@pytest.mark.parametrize("size", [1, 3, 10])
def test_passes_add_up_to_the_batch_of_a_plain_accelerator(size):
    wanted, norms = trained(accelerate.Accelerator(cpu=True), 10)
    found, own = trained(Accelerator(epochs=3, cpu=True, gradient_accumulation_steps=-(-10 // size)), size)
    assert torch.allclose(found, wanted, rtol=1e-12, atol=0) and own == pytest.approx(norms, rel=1e-9)


def test_loop_that_is_left_continues_with_the_next_step():
    script = Script()
    counted = []
    for _ in range(script.accelerator.epochs_done, 3):
        for batch in script.train:
            script.accelerator.backward(script.model(**batch)["loss"])
            script.optimizer.step()
            script.schedulers[0].step()
            counted.append(script.accelerator.job.steps_done)
            break
    assert counted == [1, 2, 3] and list(script.train) == []


def test_samples_in_tuples_count_the_same():
    points = [(sample["x"], sample["labels"]) for sample in samples()]
    weights = []
    for size in (10, 3):
        accelerate.state.AcceleratorState._reset_state()
        script = Script(dataset=points, loader=loader(batch_size=size), gradient_accumulation_steps=-(-10 // size))
        assert script.accelerator.epochs_done == 0
        for x, y in script.train:
            script.accelerator.backward(torch.nn.functional.cross_entropy(script.model(x, y)["logits"], y))
            script.optimizer.step()
            script.schedulers[0].step()
        script.accelerator.end_training()
        weights.append(script.bare.layer.weight.detach())
    assert torch.allclose(*weights, rtol=1e-12, atol=0)


def test_saved_model_has_the_names_of_the_script(tmp_path):
    script = Script()
    script.epoch()
    script.accelerator.save_model(script.model, tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert sorted(saved) == ["layer.bias", "layer.weight"] and torch.equal(saved["layer.weight"], script.bare.layer.weight)


def test_loader_that_is_prepared_later_is_evaluated():
    script = Script()
    later = script.accelerator.prepare(torch.utils.data.DataLoader(samples(), batch_size=4))
    found = []
    script.epoch(after=lambda: found.extend(script.accelerator.gather(batch["labels"]) for batch in later))
    assert len(torch.cat(found)) == 10


def test_hook_of_ddp_is_refused():
    hook = DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.FP16)
    with pytest.raises(rh.ConfigError, match="DistributedDataParallelKwargs with a comm_hook"):
        Script(kwargs_handlers=[hook])


def test_mixed_precision_of_accelerate_is_kept():
    script = Script(mixed_precision="bf16", model=Tiny().float())
    script.epoch()
    assert script.bare.computed_in == torch.bfloat16 and not script.is_untouched()


def test_evaluation_gathers_what_a_single_process_has():
    script = Script()
    found = []

    def evaluation():
        for batch in script.evaluated:
            found.append(script.accelerator.gather_for_metrics(batch["labels"]))

    script.epoch(after=evaluation)
    assert torch.cat(found).tolist() == [index % 3 for index in range(10)]
    with pytest.raises(rh.ConfigError, match="gather_for_metrics outside of an evaluation"):
        script.epoch(begins=False, clip=lambda: script.accelerator.gather_for_metrics(torch.ones(1)))


class Tracker(accelerate.tracking.GeneralTracker):
    """A tracker that opens its run on rank 0 alone."""

    name, requires_logging_directory, tracker = "test", False, None

    def __init__(self):
        super().__init__()
        self.logged = []

    def start(self):
        self.is_started = True

    def store_init_configuration(self, values):
        self.config = values

    def log(self, values, step, **_):
        assert self.is_started
        self.logged.append(step)

    def finish(self):
        self.is_started = False


def test_tracker_of_a_new_first_rank_opens_a_run():
    tracker = Tracker()
    script = Script(log_with=tracker)
    accelerator = script.accelerator
    accelerate.PartialState().process_index = 1
    accelerator.init_trackers("run", config={"rate": 1})
    assert accelerator.trackers == [] and not accelerator.is_main_process
    accelerator.log({"loss": 1.0}, step=0)
    accelerator._enter_generation(accelerator.job)
    accelerator.log({"loss": 1.0}, step=1)
    assert tracker.logged == [1] and tracker.config == {"rate": 1}


def test_function_of_the_main_process_runs_on_rank_0_alone():
    script = Script()
    calls = []
    script.accelerator.on_main_process(calls.append)(0)
    accelerate.PartialState().process_index = 1
    script.accelerator.on_main_process(calls.append)(1)
    accelerate.PartialState().process_index = 0
    assert calls == [0]
