"""Gradient scalers in ``job.commit``."""

import json

import pytest
import roundhouse as rh
import torch
from small_script import DATA, loss_of


def skipped_steps(directory):
    """The steps that are committed without an update, by the ledger."""
    lines = [json.loads(line) for line in (directory / "ledger" / "gen-0000000001.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if line.get("skipped")]


def train_scaled(parts, scaler, directory, body, *, steps=3, **others):
    """Trains with a scaler; ``body(job, loss)`` is the rest of each step."""
    state = parts.state(scaler=scaler, **others)
    with rh.join(state=state, checkpoint_dir=directory) as job:
        for batch in job.steps(DATA, job.sampler(40, 8, steps=steps)):
            value = loss_of(job.model(parts.head)(job.model(parts.body)(batch.x)), batch.y)
            scaler.scale(value).backward()
            body(job, value)


@pytest.mark.parametrize("most", [None, 1.0])
@pytest.mark.parametrize("layer", ["body", "head"])
@pytest.mark.parametrize("unscales", [False, True])
def test_scaler_skips_all_optimizers_or_none(parts, tmp_path, unscales, layer, most):
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
def test_scaler_ignores_the_optimizer_of_a_frozen_part(parts, tmp_path, most):
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


def test_step_is_skipped_only_by_its_own_optimizers(parts, tmp_path):
    """The scaler may also lower its scale because of another optimizer."""
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
def test_scale_of_0_is_an_error_before_the_update(parts, tmp_path, most):
    # Half of the smallest positive number is 0.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**-149)

    def body(job, loss):
        parts.head.weight.grad[0, 0] = float("inf")
        assert job.commit(loss, parts.both, scaler=scaler, max_grad_norm=most)

    before = parts.body.weight.detach().clone()
    with pytest.raises(rh.Diverged, match="step 2: .* the scale of the scaler has fallen to 0"):
        train_scaled(parts, scaler, tmp_path, body)
    assert torch.equal(before, parts.body.weight)


def test_disabled_scaler_keeps_no_state_of_a_dropped_step(parts):
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    with rh.join(state=parts.state(scaler=scaler)) as job:
        for batch in job.steps(DATA, job.sampler(40, 8, steps=3)):
            value = loss_of(job.model(parts.head)(job.model(parts.body)(batch.x)), batch.y)
            scaler.scale(value).backward()
            if job.steps_done == 1:
                break  # Drops the step, as when a rank is lost.
            job.commit(value, parts.both, scaler=scaler)
    assert job.steps_done == 1 and parts.body.weight.grad is None
