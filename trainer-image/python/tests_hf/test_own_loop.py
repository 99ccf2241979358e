"""A loop of the script over roundhouse.hf.Accelerator, in this process."""

import accelerate
import pytest
import roundhouse as rh
import torch
from roundhouse.hf import Accelerator
from safetensors.torch import load_file
from small_loop import Script, loader
from small_trainer import Tiny, samples

pytestmark = pytest.mark.usefixtures("ended_loops")


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


def test_pass_of_a_missed_step_does_not_prepare_ddp_for_a_sum():
    script = Script(scheduler=False, loader=loader(batch_size=2))
    loop = script.accelerator._loop
    accumulates = []

    def after():
        accumulates.append(script.model._gradients.accumulates)
        if len(accumulates) == 2:
            loop.counted -= 1  # As if the other ranks had committed a step without this one.

    script.epoch(after=after)
    assert accumulates == [False, False, True, False, False, False]


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
