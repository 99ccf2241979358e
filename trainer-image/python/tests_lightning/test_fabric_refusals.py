"""What the strategy for Fabric refuses, and the sentences that it gives."""

import inspect

import lightning
import pytest
import roundhouse as rh
import torch
from roundhouse.lightning import ElasticFabric
from small_module import loader


# Before lightning 2.6 fabric.setup takes no scheduler.
IS_OLD = "scheduler" not in inspect.signature(lightning.Fabric.setup).parameters


def made(**options):
    """A Fabric with a model, an optimizer and a scheduler, the train loader, and the model's
    weights."""
    strategy = {name: options.pop(name) for name in ("interval", "join") if name in options}
    fabric = lightning.Fabric(accelerator="cpu", strategy=ElasticFabric(global_batch_size=5, **strategy), **options)
    torch.manual_seed(2)
    net = torch.nn.Linear(4, 3, dtype=torch.float64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    schedules = {} if IS_OLD else {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)}
    model, optimizer, *schedules = fabric.setup(net, optimizer, **schedules)
    schedule = schedules[0] if schedules else None
    return fabric, model, optimizer, schedule, fabric.setup_dataloaders(loader()), net


def passes(fabric, model, x, y):
    fabric.backward(torch.nn.functional.cross_entropy(model(x), y))


def twice(fabric, model, optimizer, batch):
    passes(fabric, model, *batch)
    passes(fabric, model, *batch)


def closure(fabric, model, optimizer, batch):
    optimizer.step(lambda: passes(fabric, model, *batch))


def no_step(fabric, model, optimizer, batch):
    passes(fabric, model, *batch)


def no_backward(fabric, model, optimizer, batch):
    optimizer.step()


def gathers(fabric, model, optimizer, batch):
    fabric.all_gather(model(batch[0]))


def loads(fabric, model, optimizer, batch):
    fabric.load("last.ckpt", {"model": model})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (twice, "two calls of fabric.backward in a step: the gradients would be summed twice; add the losses"),
        (closure, r"optimizer.step\(closure\): compute the loss before it"),
        (no_step, r"a batch without optimizer.step\(\): each batch is one step over all workers"),
        (no_backward, r"optimizer.step\(\) without fabric.backward\(loss\) in the step"),
        (gathers, "fabric.all_gather in a step: its result, and so the gradient, would depend"),
        (loads, r"fabric.load\('last.ckpt'\) in a training: a job continues from its own checkpoints"),
    ],
)
def test_steps_that_a_job_cannot_follow_are_named(body, words):
    fabric, model, optimizer, _, train, net = made()
    before = net.weight.clone()
    with pytest.raises(rh.ConfigError, match=f"roundhouse.lightning: {words}"):
        for _ in fabric.strategy.epochs(2):
            for batch in train:
                body(fabric, model, optimizer, batch)
    assert torch.equal(net.weight, before)


def test_loop_without_epochs_is_refused():
    *_, train, _ = made()
    with pytest.raises(
        rh.ConfigError, match=r"the train loader outside of epochs\(\): write `for epoch in fabric.strategy.epochs"
    ):
        next(iter(train))


def test_precision_with_a_scaler_is_refused():
    fabric, *_ = made(precision="16-true")
    with pytest.raises(rh.ConfigError, match="precision='16-true': give one of 32-true"):
        next(fabric.strategy.epochs(1))


def test_interval_other_than_two_is_refused():
    with pytest.raises(rh.ConfigError, match='give "step" or "epoch"'):
        ElasticFabric(5, interval="batch")


@pytest.mark.skipif(IS_OLD, reason="fabric.setup takes no scheduler")
@pytest.mark.parametrize(
    ("interval", "per_step", "words"), [("step", False, "was not called in step 1"), ("epoch", True, "was called in step 1")]
)
def test_scheduler_that_is_called_otherwise_is_named(interval, per_step, words):
    fabric, model, optimizer, schedule, train, _ = made(interval=interval)
    with pytest.raises(rh.ConfigError, match=rf"scheduler.step\(\) {words}, but ElasticFabric\(interval=\"{interval}\"\)"):
        for _ in fabric.strategy.epochs(2):
            for batch in train:
                passes(fabric, model, *batch)
                optimizer.step()
                if per_step:
                    schedule.step()


def test_scheduler_that_fabric_was_not_given_is_refused():
    fabric = lightning.Fabric(accelerator="cpu", strategy=ElasticFabric(global_batch_size=5))
    net = torch.nn.Linear(4, 3)
    _, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    fabric.setup_dataloaders(loader())
    schedules = [torch.optim.lr_scheduler.StepLR(optimizer, 1) for _ in range(2)]
    whole = torch.optim.lr_scheduler.SequentialLR(optimizer, schedules, milestones=[1])
    with pytest.raises(rh.ConfigError, match="fabric.setup was not given the SequentialLR of the optimizer"):
        next(fabric.strategy.epochs(1))
    del whole


def test_two_optimizers_are_refused_before_the_first_step():
    fabric = lightning.Fabric(accelerator="cpu", strategy=ElasticFabric(global_batch_size=5))
    nets = [torch.nn.Linear(4, 3) for _ in range(2)]
    for net in nets:
        fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    fabric.setup_dataloaders(loader())
    with pytest.raises(
        rh.ConfigError, match=r"epochs\(\) with 2 optimizers and a train loader: give fabric.setup one optimizer"
    ):
        next(fabric.strategy.epochs(1))


def test_loop_that_is_left_early_finishes(tmp_path):
    fabric, model, optimizer, schedule, train, net = made(join={"checkpoint_dir": str(tmp_path)})
    for epoch in fabric.strategy.epochs(5):
        for batch in train:
            passes(fabric, model, *batch)
            optimizer.step()
            if schedule is not None:
                schedule.step()
        if epoch == 1:
            break
    fabric.strategy.finish()
    assert fabric.strategy.job.steps_done == 2 * len(train)
    fabric, *_ = made()
    assert next(fabric.strategy.epochs(1)) == 0
    fabric.strategy.finish()
