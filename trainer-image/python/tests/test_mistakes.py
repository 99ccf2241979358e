"""Mistakes of a script in a world of one, and what it may do that looks like one. Nothing waits for a second worker to show."""

import contextlib
import copy
import json
import os
import subprocess
import sys
import warnings

import pytest
import roundhouse as rh
import torch
from roundhouse import _native, joining
from roundhouse.data import Loader, Sampler
from roundhouse.digests import digest_of, portions
from roundhouse.ending import explained
from roundhouse.failures import Failures
from roundhouse.optimizer import bytes_of
from roundhouse.state import InPlace, Row
from roundhouse.streams import Shard
from roundhouse.updates import learning_rate, schedulers_of

RANDOM = torch.Generator().manual_seed(1)
DATA = torch.utils.data.TensorDataset(torch.randn(40, 4, generator=RANDOM), torch.randint(2, (40,), generator=RANDOM))
loss_of = torch.nn.functional.cross_entropy


class Parts:
    """What a script has: two layers, and an optimizer for each."""

    def __init__(self):
        self.body, self.head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)
        self.first = torch.optim.SGD(self.body.parameters(), lr=0.1)
        self.second = torch.optim.SGD(self.head.parameters(), lr=0.1)
        self.both = [self.first, self.second]

    def state(self, **others):
        return {"body": self.body, "head": self.head, "first": self.first, "second": self.second, **others}


@pytest.fixture
def parts():
    torch.manual_seed(1)
    return Parts()


def train(parts, body, *, loss=None, steps=2, **options):
    """A training whose loss is ``loss(job, x)``, and the rest of whose steps is ``body(job, loss)``."""
    options.setdefault("state", parts.state())
    loss = loss or (lambda job, x: job.model(parts.head)(job.model(parts.body)(x)))
    with rh.join(**options) as job:
        for batch in job.steps(DATA, job.sampler(40, 8, steps=steps)):
            value = loss_of(loss(job, batch.x), batch.y)
            value.backward()
            body(job, value)


@pytest.mark.parametrize("left_out", ["a head", "a number"])
def test_what_an_optimizer_trains_outside_of_the_state_is_an_error_of_join(parts, left_out):
    state = parts.state()
    if left_out == "a head":
        del state["head"]
        words = r"second of .* trains 2 of its 2 parameters outside of the state \(shapes: \[2, 4\], \[2\]\): .* add the module"
    else:
        parts.first.add_param_group({"params": [torch.zeros(3, requires_grad=True)]})
        words = r"first of .* trains 1 of its 3 parameters outside of the state \(shapes: \[3\]\): .* or leave them out of the SGD"
    with pytest.raises(rh.StateError, match=words):
        rh.join(state=state)


class Agent:
    """It keeps a module under a name of its own."""

    def __init__(self, module):
        self.module = module

    def state_dict(self):
        return {"module": self.module.state_dict()}

    def load_state_dict(self, loaded):
        self.module.load_state_dict(loaded["module"])


def test_what_an_optimizer_trains_may_be_frozen_a_view_or_in_another_object(parts):
    flat = torch.zeros(6)
    view = flat[2:4].requires_grad_()
    frozen = torch.nn.Linear(3, 3).requires_grad_(False)
    parts.first.add_param_group({"params": [view]})
    parts.second.add_param_group({"params": frozen.parameters()})
    state = parts.state(flat=flat, head=Agent(parts.head))
    options = {"state": state, "gradients": "manual"}
    train(parts, lambda job, loss: job.commit(loss, parts.both), loss=lambda _, x: parts.head(parts.body(x)), **options)


def test_a_tensor_without_memory_of_its_own_is_named_if_it_is_outside_of_the_state(parts):
    parts.first.add_param_group({"params": [torch.zeros(3).to_sparse().requires_grad_()]})
    with pytest.raises(rh.StateError, match=r"first of .* trains 1 of its 3 parameters outside of the state \(shapes: \[3\]\)"):
        rh.join(state=parts.state())


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (
            lambda parts: lambda job, x: parts.head(job.model(parts.body)(x)),
            "the gradients of head.weight, head.bias were not summed over the ranks in this step: compute the loss with",
        ),
        (
            # The model that was made is not the one that is called.
            lambda parts: lambda job, x: (job.model(parts.body), parts.head(parts.body(x)))[1],
            "no gradients were summed over the ranks in this step: compute the loss with job.model",
        ),
        (
            lambda parts: lambda job, x: job.model(parts.head)(job.model(parts.body).eval()(x)),
            "the gradients of body.weight, body.bias were not summed over the ranks in this step: .* in training mode",
        ),
    ],
)
def test_gradients_that_a_second_worker_would_not_get_are_an_error_of_one_worker(parts, loss, words):
    with pytest.raises(rh.NotCommitted, match=words):
        train(parts, lambda job, loss: job.commit(loss, parts.both), loss=loss(parts))


@pytest.mark.parametrize("is_first_summed", [False, True])
def test_a_step_whose_last_pass_is_in_no_sync_is_an_error_of_one_worker(parts, is_first_summed):
    def loss(job, x):
        if is_first_summed:
            loss_of(job.model(parts.head)(job.model(parts.body)(x)), torch.zeros(len(x), dtype=torch.long)).backward()
        with job.model(parts.body).no_sync():
            return job.model(parts.head)(job.model(parts.body)(x))

    with pytest.raises(rh.NotCommitted, match="outside of no_sync"):
        train(parts, lambda job, loss: job.commit(loss, parts.both), loss=loss)


def test_gradients_of_one_worker_are_those_of_models_that_train(parts):
    weights = [parts.body.weight.detach().clone()]

    def body(job, loss):
        # A part is frozen in every other step. One optimizer steps, or both.
        is_frozen = not parts.body.weight.requires_grad
        job.commit(loss, parts.both if is_frozen else parts.first)
        weights.append(parts.body.weight.detach().clone())
        assert torch.equal(weights[-2], weights[-1]) is is_frozen
        parts.body.requires_grad_(job.steps_done % 2 == 0)

    def loss(job, x):
        with torch.no_grad():
            parts.head(parts.body(x))
        with job.model(parts.body).no_sync():
            loss_of(job.model(parts.head)(job.model(parts.body)(x)), torch.zeros(len(x), dtype=torch.long)).backward()
        return job.model(parts.head)(job.model(parts.body)(x))

    train(parts, body, loss=loss, steps=4)
    assert len(weights) == 5


@pytest.mark.parametrize("is_own", [True, False])
def test_an_optimizer_steps_in_commit_alone_also_after_the_commit(parts, is_own):
    other = torch.optim.Adam(parts.head.parameters())
    outside = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)

    def body(job, loss):
        assert job.commit(loss, parts.both)
        outside.step()
        (parts.first if is_own else other).step()

    own = r"optimizer.step\(\) outside of job.commit: .* remove the call"
    foreign = r"Adam.step\(\) of an optimizer that is not in .* head.weight"
    words = own if is_own else foreign
    with pytest.raises(rh.NotCommitted, match=words):
        train(parts, body)


@pytest.mark.parametrize("is_own", [False, True])
def test_after_a_commit_without_optimizers_the_script_steps_those_that_are_not_in_the_state(parts, is_own):
    other = torch.optim.SGD(parts.head.parameters(), lr=0.1)
    weights = []

    def body(job, loss):
        assert job.commit(loss, [])
        weights.append(parts.head.weight.detach().clone())
        (parts.first if is_own else other).step()
        assert not torch.equal(weights[-1], parts.head.weight)
        other.zero_grad()

    if is_own:
        with pytest.raises(rh.NotCommitted, match=r"optimizer.step\(\) outside of job.commit"):
            train(parts, body)
        return
    state = {"body": parts.body, "head": parts.head}
    train(parts, body, state=state)
    # The permission ends with the step.
    with pytest.raises(rh.NotCommitted, match=r"SGD.step\(\) of an optimizer that is not in"):
        train(parts, lambda job, loss: (other.step if job.steps_done else lambda: body(job, loss))(), state=state)


def test_an_optimizer_outside_of_the_state_may_list_what_is_frozen(parts):
    probe = torch.nn.Linear(4, 2)
    parts.body.requires_grad_(False)
    other = torch.optim.Adam([*parts.body.parameters(), *probe.parameters()])

    def body(job, loss):
        loss_of(probe(torch.ones(1, 4)), torch.zeros(1, dtype=torch.long)).backward()
        other.step()
        job.commit(loss, parts.second)

    train(parts, body)
    # An optimizer steps what has a gradient, frozen or not.
    parts.body.weight.grad = torch.ones(4, 4)
    with pytest.raises(rh.NotCommitted, match="Adam.* would change body.weight: add it to the state"):
        train(parts, body)


def test_a_parameter_in_two_optimizers_of_one_commit_is_named(parts):
    third = torch.optim.SGD([parts.head.bias], lr=0.1)
    state = parts.state(third=third)
    with pytest.raises(rh.ConfigError, match="job.commit: head.bias would be stepped by two optimizers in one step"):
        train(parts, lambda job, loss: job.commit(loss), state=state)
    train(parts, lambda job, loss: job.commit(loss, [parts.first, (third, parts.second)[job.steps_done]]), state=state)
    # What is frozen is not stepped.
    parts.head.bias.requires_grad_(False)
    train(parts, lambda job, loss: job.commit(loss, parts.both + [third]), state=state)


def test_optimizers_step_freely_when_the_loop_is_over_or_left(parts):
    def loop(job, sampler, leaves):
        for batch in job.steps(DATA, sampler):
            loss = loss_of(job.model(parts.head)(job.model(parts.body)(batch.x)), batch.y)
            loss.backward()
            job.commit(loss, parts.both)
            if leaves:
                break

    with rh.join(state=parts.state()) as job:
        sampler = job.sampler(40, 8, steps=3)
        for leaves in (True, False):
            loop(job, sampler, leaves)
            parts.first.step()


def test_options_of_a_model_that_came_too_late_are_not_ignored(parts):
    def loss(job, x):
        options = {"find_unused_parameters": True} if job.steps_done else {}
        return job.model(parts.head)(job.model(parts.body, **options)(x))

    with pytest.raises(rh.ConfigError, match="job.model of the same Linear with other options than before: .* before the loop"):
        train(parts, lambda job, loss: job.commit(loss, parts.both), loss=loss)
    with rh.join(state=parts.state()) as job:
        net = job.model(parts.body)
        options = {"find_unused_parameters": True}
        assert job.model(parts.body, **options) is net and net._options == options
        assert job.model(parts.body) is net and job.model(parts.body, **options)._options == options
        with pytest.raises(rh.ConfigError, match="other options than before"):
            job.model(parts.body, bucket_cap_mb=1)
        with pytest.raises(rh.ConfigError, match="job.model: delay_all_reduce_named_params, param_to_hook_all_reduce: the job"):
            job.model(parts.head, delay_all_reduce_named_params=[], param_to_hook_all_reduce=parts.head.bias)
        for batch in job.steps(DATA, job.sampler(40, 8, steps=1)):
            loss = loss_of(job.model(parts.head)(net(batch.x)), batch.y)
            loss.backward()
            job.commit(loss)


def test_a_static_graph_is_refused_in_no_sync_also_with_one_worker(parts):
    def loss(job, x):
        net, head = job.model(parts.body, static_graph=True), job.model(parts.head)
        if job.steps_done == 1:
            # The passes of one model accumulate, and so do those of all others. Those without gradients do not.
            with head.no_sync(), torch.no_grad():
                net(x)
            with head.no_sync():
                return head(net(x))
        return head(net(x))

    with pytest.raises(rh.ConfigError, match="a pass of Linear in no_sync with .*static_graph=True.* leave out static_graph, or"):
        train(parts, lambda job, loss: job.commit(loss, parts.both), loss=loss)


def test_several_schedulers_step_in_a_commit(parts):
    schedules = [torch.optim.lr_scheduler.ExponentialLR(opt, 0.5) for opt in parts.both]
    state = parts.state(a=schedules[0], b=schedules[1])
    train(parts, lambda job, loss: job.commit(loss, parts.both, schedules), state=state, steps=3)
    assert [opt.param_groups[0]["lr"] for opt in parts.both] == [0.1 / 8] * 2


def test_a_scheduler_that_commit_cannot_step_is_refused_before_the_weights_change(parts):
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(parts.first)
    before = parts.body.weight.detach().clone()
    with pytest.raises(rh.ConfigError, match="job.commit cannot step a ReduceLROnPlateau, whose .* `then` of rh.Evaluation"):
        train(parts, lambda job, loss: job.commit(loss, parts.both, plateau), state=parts.state(plateau=plateau))
    assert torch.equal(before, parts.body.weight)
    with pytest.raises(rh.ConfigError, match="the third argument has to be a scheduler, not a int"):
        schedulers_of(3)


def test_a_plateau_is_followed_in_the_evaluations(parts, tmp_path):
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(parts.first, factor=0.5, patience=0)
    followed = torch.tensor(-1)

    def measure(batch):
        return {"loss": float(len(batch[1]))}

    def follow(means):
        evaluated.append(job.steps_done)
        if followed != job.steps_done:
            plateau.step(means["loss"])
            followed.fill_(job.steps_done)

    evaluated = []
    evaluation = rh.Evaluation(DATA, measure, then=follow)
    options = {"checkpoint_dir": tmp_path, "checkpoint_every_steps": 1}
    for epochs, rate in ((3, 0.1 / 4), (4, 0.1 / 8)):
        parts.first.param_groups[0]["lr"] = 0.1
        followed.fill_(-1)
        with rh.join(state=parts.state(plateau=plateau, followed=followed), **options) as job:
            for batch in job.steps(DATA, job.sampler(40, 20, epochs=epochs), evaluation=evaluation):
                loss = loss_of(job.model(parts.head)(job.model(parts.body)(batch.x)), batch.y)
                loss.backward()
                job.commit(loss, parts.both)
        assert parts.first.param_groups[0]["lr"] == pytest.approx(rate)
    # A start from a checkpoint evaluates its state once more.
    assert evaluated == [2, 4, 6, 6, 8]


def test_an_optimizer_without_a_rate_trains(parts):
    for rate, reported in [(torch.tensor(0.5), 0.5), (0.25, 0.25)]:
        parts.first.param_groups[0]["lr"] = rate
        assert learning_rate(parts.both) == reported
    assert learning_rate([]) == 0.0
    parts.first.param_groups[0]["lr"] = None
    assert learning_rate(parts.both) != learning_rate(parts.both)

    class Relative(torch.optim.Optimizer):
        """It has no rate, as an Adafactor with relative steps."""

        def step(self, closure=None):
            for parameter in self.param_groups[0]["params"]:
                parameter.data -= 0.01 * (0 if parameter.grad is None else parameter.grad)

    for defaults in ({"lr": None}, {}):
        parts.first = Relative(parts.body.parameters(), defaults)
        train(parts, lambda job, loss: job.commit(loss, [parts.first, parts.second]))


def skipped_steps(directory):
    """The steps that the ledger says to be committed without an update."""
    lines = [json.loads(line) for line in (directory / "ledger" / "gen-0000000001.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if line.get("skipped")]


def train_scaled(parts, scaler, directory, body, *, steps=3, **others):
    """A training with a scaler, the rest of whose steps is ``body(job, loss)``."""
    state = parts.state(scaler=scaler, **others)
    with rh.join(state=state, checkpoint_dir=directory) as job:
        for batch in job.steps(DATA, job.sampler(40, 8, steps=steps)):
            value = loss_of(job.model(parts.head)(job.model(parts.body)(batch.x)), batch.y)
            scaler.scale(value).backward()
            body(job, value)


@pytest.mark.parametrize("most", [None, 1.0])
@pytest.mark.parametrize("layer", ["body", "head"])
@pytest.mark.parametrize("unscales", [False, True])
def test_a_scaler_skips_the_step_of_all_optimizers_or_of_none(parts, tmp_path, unscales, layer, most):
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
    schedule = torch.optim.lr_scheduler.ExponentialLR(parts.first, 0.5)
    weights = []

    def body(job, loss):
        if job.steps_done == 1:
            getattr(parts, layer).weight.grad[0, 0] = float("inf")
        if unscales:
            scaler.unscale_(parts.second)
        assert job.commit(loss, parts.both, schedule, scaler=scaler, max_grad_norm=most)
        weights.append([layer.weight.detach().clone() for layer in (parts.body, parts.head)])

    train_scaled(parts, scaler, tmp_path, body, schedule=schedule)
    for index in range(2):
        first, second, third = (step[index] for step in weights)
        assert torch.equal(first, second) and not torch.equal(second, third)
    assert scaler.get_scale() == 2.0 and schedule.last_epoch == 2
    assert skipped_steps(tmp_path) == [2]


@pytest.mark.parametrize("most", [None, 1.0])
def test_a_scaler_passes_over_an_optimizer_whose_part_is_frozen(parts, tmp_path, most):
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    parts.head.requires_grad_(False)
    weights = []

    def body(job, loss):
        if job.steps_done == 1:
            parts.body.weight.grad[0, 0] = float("inf")
        assert job.commit(loss, parts.both, scaler=scaler, max_grad_norm=most)
        weights.append([layer.weight.detach().clone() for layer in (parts.body, parts.head)])

    train_scaled(parts, scaler, tmp_path, body)
    (first, head), (second, _), (third, last_head) = weights
    assert torch.equal(first, second) and not torch.equal(second, third) and torch.equal(head, last_head)
    assert skipped_steps(tmp_path) == [2]


def test_a_step_is_skipped_if_its_own_optimizers_skip_it(parts, tmp_path):
    """Also if the scaler lowers its scale because of another optimizer."""
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(parts.first, 0.5)
    weights = [parts.body.weight.detach().clone()]

    def body(job, loss):
        if job.steps_done < 2:
            (parts.head, parts.body)[job.steps_done].weight.grad[0, 0] = float("inf")
        scaler.unscale_(parts.second)
        assert job.commit(loss, parts.first, schedule, scaler=scaler)
        weights.append(parts.body.weight.detach().clone())

    train_scaled(parts, scaler, tmp_path, body, schedule=schedule)
    assert [torch.equal(*pair) for pair in zip(weights, weights[1:])] == [False, True, False]
    assert skipped_steps(tmp_path) == [2] and schedule.last_epoch == 2 and scaler.get_scale() == 1.0


@pytest.mark.parametrize("most", [None, 1.0])
def test_a_scale_that_has_fallen_to_0_is_an_error_before_the_weights_change(parts, tmp_path, most):
    # Half of the smallest number above 0 is 0.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**-149)

    def body(job, loss):
        parts.head.weight.grad[0, 0] = float("inf")
        assert job.commit(loss, parts.both, scaler=scaler, max_grad_norm=most)

    before = parts.body.weight.detach().clone()
    with pytest.raises(rh.Diverged, match="step 2: .* the scale of the scaler has fallen to 0"):
        train_scaled(parts, scaler, tmp_path, body)
    assert torch.equal(before, parts.body.weight)


class Once(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(5))

    def __len__(self):
        return 5


def test_streams_that_were_given_to_the_wrong_call_are_named():
    sampler = Sampler(5, 5, epochs=1)
    for dataset in (Once(), (number for number in range(5)), iter([1])):
        with pytest.raises(rh.ConfigError, match=r"give job.shard_of\(stream, num_samples=N\) in its place"):
            Loader(dataset, sampler)
    with pytest.raises(rh.ConfigError, match="makes the DataLoader itself: give it the data set"):
        Loader(torch.utils.data.DataLoader(range(5)), sampler)
    for stream in ((number for number in range(5)), iter([1]), map(int, [1])):
        with pytest.raises(rh.ConfigError, match="which can be read only once: .* give a function of the epoch"):
            Shard(stream, 5)
    with pytest.raises(rh.ConfigError, match="job.shard_of got a int, which is not iterable"):
        Shard(5, 5)
    assert Shard(Once(), 5).at(0, 3, None) == 3


def test_the_device_is_that_of_the_first_module(parts):
    number, module = torch.zeros(2), torch.nn.Linear(2, 2, device="meta")
    norm = torch.nn.BatchNorm1d(2, affine=False, device="meta")
    for state, device in [
        ({"best": number, "model": module}, "meta"),
        ({"best": number, "loss": torch.nn.ReLU(), "norm": norm}, "meta"),
        ({"model": parts.body, "other": module}, "cpu"),
        ({"loss": torch.nn.ReLU(), "best": torch.zeros(2, device="meta"), "other": number}, "meta"),
        ({"opt": parts.first}, "cpu"),
    ]:
        assert joining._device_of(state).type == device


def test_a_process_of_another_launcher_does_not_train_alone(parts, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    words = "rh.join under torchrun .*WORLD_SIZE=2.*`kubectl roundhouse run --local.*`env -u WORLD_SIZE"
    with pytest.raises(rh.ConfigError, match=words):
        rh.join(state=parts.state())
    # The message of restart mode, whose agent sets both.
    monkeypatch.setenv("ROUNDHOUSE_GENERATION", "1")
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with pytest.raises(rh.ConfigError, match="set elastic.mode: InProcess"):
        rh.join(state=parts.state())
    monkeypatch.delenv("ROUNDHOUSE_GENERATION")
    # Digits alone make no number. A container may set WORLD_SIZE without a launcher.
    for alone, rank in (("1", "0"), ("", "0"), ("²", "0"), ("2", None)):
        monkeypatch.setenv("WORLD_SIZE", alone)
        if rank is None:
            monkeypatch.delenv("RANK")
        train(parts, lambda job, loss: job.commit(loss, parts.both))


def test_a_cell_of_a_notebook_that_has_joined_without_with_is_told_what_to_do():
    source = """
import torch, roundhouse as rh
for _ in range(2):
    job = rh.join(state={"model": torch.nn.Linear(1, 1)})
"""
    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 1, ended.stderr
    assert "AlreadyJoined: rh.join was called twice" in ended.stderr and "restart the kernel" in ended.stderr, ended.stderr


def test_a_module_that_is_lazy_and_a_tensor_of_which_a_rank_has_a_part_are_refused(tmp_path):
    with pytest.raises(rh.StateError, match=r"model.0.weight .* has no shape yet.* run one batch through the model before rh.join"):
        rh.join(state={"model": torch.nn.Sequential(torch.nn.LazyLinear(2))})
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        from torch.distributed.tensor import Shard as Sharded
        from torch.distributed.tensor import distribute_tensor, init_device_mesh

        part = distribute_tensor(torch.ones(4), init_device_mesh("cpu", (1,)), [Sharded(0)])
        with pytest.raises(rh.StateError, match="weights of .* is a DTensor, of which each rank has a part"):
            rh.join(state={"weights": part})
    finally:
        torch.distributed.destroy_process_group()


def test_a_scaler_that_is_switched_off_keeps_nothing_of_a_step_that_is_dropped(parts):
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    with rh.join(state=parts.state(scaler=scaler)) as job:
        for batch in job.steps(DATA, job.sampler(40, 8, steps=3)):
            value = loss_of(job.model(parts.head)(job.model(parts.body)(batch.x)), batch.y)
            scaler.scale(value).backward()
            if job.steps_done == 1:
                break  # As when a rank is lost, the step is as if it had not been.
            job.commit(value, parts.both, scaler=scaler)
    assert job.steps_done == 1 and parts.body.weight.grad is None


@pytest.mark.parametrize("loaders", [0, 1])
def test_a_data_set_that_raises_stop_iteration_is_an_error_and_not_read_for_ever(loaders):
    class Ends(torch.utils.data.Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            return next(iter([index] if index != 33 else []))

    sampler = Sampler(40, 8, epochs=1)
    loader = Loader(Ends(), sampler, num_workers=loaders)
    with pytest.raises(RuntimeError) as raised:
        for step in range(5):
            loader.load(sampler.plan(step, 8 * step, (1, 0, 1)), 8 * step)
    assert "StopIteration" in "".join(explained(raised.value)[1:]) and "(test_mistakes.py:" in explained(raised.value)[1]
    evaluation = rh.Evaluation(Ends(), lambda batch: {"loss": 0.0}, batch_size=8, options={"num_workers": loaders})
    with pytest.raises(RuntimeError):
        evaluation.sums(0, 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda parts: setattr(parts.net, "1", torch.nn.Linear(4, 2)), "net.1.weight is another tensor than at rh.join"),
        (lambda parts: parts.net.append(torch.nn.Linear(2, 2)), "net.2.weight was not there at rh.join"),
        (lambda parts: delattr(parts.net, "1"), "net.1.weight is gone since rh.join"),
        (
            lambda parts: parts.first.add_param_group({"params": [torch.zeros(3, requires_grad=True)]}),
            "first of .* has other parameters or groups than at rh.join",
        ),
        # Nothing that is trained.
        (lambda parts: parts.net.append(torch.nn.ReLU()), None),
    ],
)
def test_a_module_or_an_optimizer_that_was_exchanged_after_the_join_is_named_at_the_commit(parts, change, words):
    parts.net = torch.nn.Sequential(parts.body, parts.head)
    state = {"net": parts.net, "first": parts.first, "second": parts.second}

    def body(job, value):
        if job.steps_done == 1:
            change(parts)
        job.commit(value, parts.both)

    with pytest.raises(rh.StateError, match=words) if words else contextlib.nullcontext():
        train(parts, body, loss=lambda job, x: job.model(parts.net)(x), state=state)


def test_an_epoch_may_end_with_its_last_whole_batch_and_leaves_out_other_samples_each_time():
    sampler = Sampler(10, 4, epochs=6, seed=3, drop_last=True)
    steps = [sampler.plan(number, 4 * number, (1, 0, 1)) for number in range(12)]
    assert sampler.plan(12, 48, (1, 0, 1)) is None and sampler.total_steps == 12
    assert all(step.size == 4 for step in steps)
    assert [step.ends_epoch for step in steps] == [False, True] * 6
    used = [set(first.indices) | set(second.indices) for first, second in zip(steps[::2], steps[1::2])]
    assert all(len(one) == 8 and one <= set(range(10)) for one in used)
    assert len({frozenset(one) for one in used}) > 1
    # The order is that of the whole data set.
    whole = Sampler(10, 4, epochs=6, seed=3)
    assert steps[0].indices == whole.plan(0, 0, (1, 0, 1)).indices
    with pytest.raises(rh.ConfigError, match="drop_last belongs to job.sampler"):
        Loader(DATA, Sampler(40, 8, epochs=1), drop_last=True)


def test_a_weight_makes_the_mean_over_tokens_and_needs_sums(parts):
    tokens = torch.randint(1, 7, (40,), generator=torch.Generator().manual_seed(2)).float()
    data = torch.utils.data.TensorDataset(*DATA.tensors, tokens)
    initial = copy.deepcopy(parts)

    def trained(parts, step_of):
        with rh.join(state=parts.state()) as job:
            net = torch.nn.Sequential(job.model(parts.body), job.model(parts.head))
            for batch in job.steps(data, job.sampler(40, 8, epochs=2, reduction="sum")):
                x, y, own = batch
                step_of(job, loss_of(net(x), y, reduction="none") * own, own)
        return parts.body.weight.detach()

    def weighted(job, losses, own):
        losses.sum().backward()
        job.commit(losses.sum(), parts.both, max_grad_norm=0.1, weight=own.sum())

    def mean(job, losses, own):
        (losses.sum() / own.sum()).backward()
        job.commit(losses.sum() / own.sum(), [initial.first, initial.second], max_grad_norm=0.1)

    # Of a deep copy, optimizers train the copied parameters.
    assert initial.first.param_groups[0]["params"][0] is initial.body.weight
    assert torch.allclose(trained(parts, weighted), trained(initial, mean), atol=1e-6)
    with pytest.raises(rh.ConfigError, match='a weight is for gradients of sums: give job.sampler reduction="sum"'):
        train(parts, lambda job, value: job.commit(value, parts.both, weight=3))


def test_a_worker_on_a_gpu_without_the_settings_of_its_agent_is_warned(monkeypatch):
    process = _native.Process.start()
    names = process.missing_settings()
    assert "TORCH_NCCL_ASYNC_ERROR_HANDLING" in names and "NCCL_RUNTIME_CONNECT" in names
    gpu = torch.device("cuda", 0)

    class Worker:
        has_agent = True
        missing_settings = process.missing_settings

    with pytest.warns(UserWarning, match="TORCH_NCCL_ASYNC_ERROR_HANDLING, .* are not set, which the agent of a worker sets"):
        joining._check_settings(Worker, gpu)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        joining._check_settings(Worker, torch.device("cpu"))
        joining._check_settings(process, gpu)
        for name in names:
            monkeypatch.setenv(name, "1")
        joining._check_settings(Worker, gpu)


class Reads(torch.overrides.TorchFunctionMode):
    """Notes where numbers are read from tensors: on a GPU the host would wait there."""

    NAMES = {"item", "tolist", "numpy", "__float__", "__int__", "__bool__", "__index__", "cpu"}

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name in self.NAMES:
            self.seen.append(name)
        return function(*args, **(kwargs or {}))


class LocalReads(torch.utils._python_dispatch.TorchDispatchMode):
    """The same within PyTorch's own functions."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._local_scalar_dense.default:
            self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("most", [None, 1.0])
@pytest.mark.parametrize(("gradients", "weighs"), [("ddp", False), ("ddp", True), ("manual", False)])
def test_a_commit_reads_once_from_the_device(parts, gradients, most, weighs):
    options = {"gradients": gradients, "state": parts.state()}
    seen = []
    with rh.join(**options) as job:
        nets = [parts.body, parts.head] if gradients == "manual" else [job.model(parts.body), job.model(parts.head)]
        for batch in job.steps(DATA, job.sampler(40, 8, steps=3, reduction="sum" if weighs else "mean")):
            loss = loss_of(nets[1](nets[0](batch.x)), batch.y, reduction="sum" if weighs else "mean")
            loss.backward()
            weight = {"weight": (batch.y >= 0).sum()} if weighs else {}
            with Reads() as reads, LocalReads() as local_reads:
                assert job.commit(loss, parts.both, max_grad_norm=most, **weight)
            seen.append(reads.seen + local_reads.seen)
    assert seen == [["tolist"]] * 3


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -1.0, torch.tensor(float("nan")), torch.tensor(-3), torch.ones(2)])
def test_a_weight_that_is_no_number_of_at_least_0_is_an_error_before_the_weights_change(parts, weight):
    before = parts.body.weight.detach().clone()
    words = "the weight has the shape" if torch.is_tensor(weight) and weight.numel() > 1 else "the weight is (nan|inf|-1.0|-3.0); give"
    with pytest.raises(rh.ConfigError, match=words), rh.join(state=parts.state()) as job:
        net = torch.nn.Sequential(job.model(parts.body), job.model(parts.head))
        for batch in job.steps(DATA, job.sampler(40, 8, steps=1, reduction="sum")):
            loss = loss_of(net(batch.x), batch.y, reduction="sum")
            loss.backward()
            job.commit(loss, parts.both, weight=weight)
    assert torch.equal(before, parts.body.weight)


def test_an_exchange_over_nccl_without_lengths_is_named_at_once(parts):
    error = RuntimeError("NCCL Error 7: NCCL operation in progress")
    code, words = explained(error)
    assert code == 64 and words.endswith("takes an operation in progress for an error") and "input_split_sizes" in words
    # No lost peer's, in the first generation already.
    assert Failures().is_of_script(error, 3, True)
    assert not Failures().is_of_script(RuntimeError("Connection closed by peer"), 3, True)


def test_the_mode_of_a_model_is_that_of_its_module(parts):
    def loss(job, x):
        net = job.model(parts.body).eval()
        # As a library that evaluates: it sets the mode of what it was given.
        parts.body.train()
        return job.model(parts.head)(net(x))

    train(parts, lambda job, value: job.commit(value, parts.both), loss=loss)


@pytest.mark.parametrize("most", [None, 0.1])
def test_after_a_commit_the_job_has_loss_and_norm_of_the_step(parts, most):
    seen = []

    def body(job, value):
        norm = torch.nn.utils.get_total_norm([p.grad for p in [*parts.body.parameters(), *parts.head.parameters()]])
        assert (job.loss, job.grad_norm) == (seen[-1] if seen else (None, None))
        assert job.commit(value, parts.both, max_grad_norm=most)
        seen.append((job.loss, job.grad_norm))
        assert seen[-1] == pytest.approx((value.item(), norm.item()), rel=1e-5)

    train(parts, body, steps=3)
    assert len(set(seen)) == 3


def test_a_loop_has_the_length_of_the_steps_that_are_to_come(parts):
    with rh.join(state=parts.state()) as job:
        sampler = job.sampler(40, 8, epochs=2)
        assert len(job.steps(DATA, sampler)) == len(job.indices(sampler)) == 10
        for batch in job.steps(DATA, sampler):
            loss = loss_of(job.model(parts.head)(job.model(parts.body)(batch.x)), batch.y)
            loss.backward()
            job.commit(loss, parts.both)
            assert len(job.steps(DATA, sampler)) == 10 - batch.step.number


def test_a_sampler_that_was_made_before_the_join_knows_the_steps_for_a_scheduler(parts):
    sampler = rh.Sampler(len(DATA), 16, epochs=2, seed=3)
    schedule = torch.optim.lr_scheduler.LinearLR(parts.first, 1.0, 0.0, total_iters=sampler.total_steps)
    with rh.join(state=parts.state(schedule=schedule)) as job:
        for batch in job.steps(DATA, sampler):
            loss = loss_of(job.model(parts.head)(job.model(parts.body)(batch.x)), batch.y)
            loss.backward()
            job.commit(loss, parts.both, schedule)
    assert job.steps_done == sampler.total_steps == 6 and schedule.get_last_lr() == [0.0]


def test_the_digest_of_gradients_sees_each_bit_and_a_double_holds_it():
    generator = torch.Generator().manual_seed(4)
    kinds = [((7, 3), torch.float32), ((5,), torch.bfloat16), ((2, 2), torch.float64)]
    gradients = [torch.randn(*shape, generator=generator).to(kind) for shape, kind in kinds]
    cpu = torch.device("cpu")
    for parts_of in (lambda: gradients, lambda: list(portions(gradients))):
        before = float(digest_of(parts_of(), cpu))
        assert before == int(before) and 0 <= before < 2**52
        for gradient in gradients:
            row = gradient.view(-1).view(torch.uint8)
            for bit in range(8 * len(row)):
                row[bit // 8] ^= 1 << bit % 8
                assert float(digest_of(parts_of(), cpu)) != before, bit
                row[bit // 8] ^= 1 << bit % 8
    assert digest_of([], cpu) == 0


def test_a_process_uses_the_cores_that_it_may_use(parts):
    may_use = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(may_use)})
    try:
        process = _native.Process.start()
        assert process.num_threads() == int(os.environ.get("OMP_NUM_THREADS") or 1)
    finally:
        os.sched_setaffinity(0, may_use)


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), 10**9])
def test_patience_has_a_bound(parts, seconds):
    def body(job, value):
        with pytest.raises(rh.ConfigError, match="give a number from 1 to"):
            job.alone(lambda: 1, seconds=seconds)
        job.commit(value, parts.both)

    train(parts, body)


def test_an_evaluation_may_be_due_every_so_many_steps():
    sampler = Sampler(40, 8, steps=12)
    every = rh.Evaluation(DATA, lambda batch: {"loss": 0.0}, every_epochs=0, every_steps=3)
    due = [step for step in range(13) if every.is_due(step, 8 * step, 0, sampler)]
    assert due == [3, 6, 9, 12] and not every.is_due(6, 48, 48, sampler)
    epochs = rh.Evaluation(DATA, lambda batch: {"loss": 0.0}, every_epochs=1)
    assert [step for step in range(13) if epochs.is_due(step, 8 * step, 0, sampler)] == [5, 10, 12]


def test_evaluations_of_a_list_are_due_after_the_same_steps(parts):
    one, other = (rh.Evaluation(DATA, lambda batch: {"loss": 0.0}, every_steps=every) for every in (3, 4))
    with rh.join(state=parts.state()) as job:
        sampler = job.sampler(40, 8, steps=1)
        for wrong, words in (([one, other], "need the same every_epochs and every_steps"), (lambda: 1, "give rh.Evaluation")):
            with pytest.raises(rh.ConfigError, match=words):
                job.steps(DATA, sampler, evaluation=wrong)
        for batch in job.steps(DATA, sampler, evaluation=[one, one]):
            loss = loss_of(job.model(parts.head)(job.model(parts.body)(batch.x)), batch.y)
            loss.backward()
            job.commit(loss, parts.both)


def test_the_digest_of_a_state_sees_each_bit_wherever_a_tensor_begins(parts):
    flat = torch.zeros(7, dtype=torch.uint8)
    row = Row(parts.state(part=flat[3:6], whole=torch.arange(11.0), none=torch.zeros(0)))
    before = row.digests()
    assert row.digests() == before and all(0 <= number < 2**32 for number in before)
    for view in [view for view in row.views if view.num_bytes and isinstance(view, InPlace)]:
        for bit in range(0, 8 * view.num_bytes, 13):
            bytes_of(view.tensor)[bit // 8] ^= 1 << bit % 8
            changed = [index for index, pair in enumerate(zip(before, row.digests())) if pair[0] != pair[1]]
            bytes_of(view.tensor)[bit // 8] ^= 1 << bit % 8
            assert changed == [row.views.index(view)], (view.name, bit)
