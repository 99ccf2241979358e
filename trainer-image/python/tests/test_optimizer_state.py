"""The state of optimizers: learned before the first step, sent, and received."""

import ctypes

import pytest
import torch
from roundhouse import errors, optimizer
from small_models import OPTIMIZERS, row_of, send, step, trained


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("steps", [0, 7])
def test_received_state_trains_like_the_senders(name, steps):
    ours, theirs = trained(OPTIMIZERS[name], 1), trained(OPTIMIZERS[name], 2)
    left, right = row_of(ours), row_of(theirs)
    for number in range(steps):
        step(*ours, number)
    # The receiver has trained another model before.
    step(*theirs, 99)
    sent = send(left, right)
    # A rank that has read a checkpoint forwards it before it trains.
    memory = (ctypes.c_uint8 * right.num_bytes)()
    right.copy_out(0, right.num_bytes, ctypes.addressof(memory))
    assert bytes(memory) == sent
    for number in range(steps, steps + 5):
        step(*ours, number)
        step(*theirs, number)
    for mine, other in zip(ours[0].state_dict().values(), theirs[0].state_dict().values()):
        assert torch.equal(mine, other)
    assert ours[1].param_groups[0]["lr"] == theirs[1].param_groups[0]["lr"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_learning_optimizer_state_changes_nothing(name):
    ours, untouched = trained(OPTIMIZERS[name], 1), trained(OPTIMIZERS[name], 1)
    row_of(ours)
    for number in range(3):
        step(*ours, number)
        step(*untouched, number)
    for mine, other in zip(ours[0].state_dict().values(), untouched[0].state_dict().values()):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_state_is_learned_in_portions(name, monkeypatch):
    sent = []
    for portion in (1 << 20, 100, 1):
        monkeypatch.setattr(optimizer, "_PORTION", portion)
        sent.append(row_of(trained(OPTIMIZERS[name], 1)).described())
    assert sent[0] == sent[1] == sent[2]


class Jealous(torch.optim.SGD):
    """Needs the gradients of all parameters in each step."""

    def step(self, closure=None):
        assert all(parameter.grad is not None for group in self.param_groups for parameter in group["params"])
        super().step(closure)


class Hungry(torch.optim.SGD):
    """Runs out of memory in each step."""

    def step(self, closure=None):
        raise torch.OutOfMemoryError("tried to allocate 80 GiB")


def test_optimizer_that_needs_all_gradients_gets_them(monkeypatch):
    monkeypatch.setattr(optimizer, "_PORTION", 1)
    row = row_of(trained(lambda p: Jealous(p, lr=0.1, momentum=0.9), 1))
    assert "opt.momentum_buffer.5" in [name for name, *_ in row.described()]
    with pytest.raises(torch.OutOfMemoryError):
        row_of(trained(lambda p: Hungry(p, lr=0.1), 1))


def test_optimizer_state_of_a_later_step_is_an_error():
    parts = trained(OPTIMIZERS["plain sgd"], 1)
    row = row_of(parts)
    memory = (ctypes.c_uint8 * row.num_bytes)()
    copy = lambda: row.copy_out(0, row.num_bytes, ctypes.addressof(memory))  # noqa: E731
    step(*parts, 1)
    copy()
    parts[1].param_groups[0]["momentum"] = 0.9
    step(*parts, 2)
    with pytest.raises(errors.StateError, match="opt of rh.join.*SGD, keeps momentum_buffer since a step after its first"):
        copy()
