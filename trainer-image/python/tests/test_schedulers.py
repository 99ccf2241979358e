"""Schedulers in ``job.commit``, and learning rates."""

import pytest
import roundhouse as rh
import torch
from roundhouse.updates import learning_rate, schedulers_of
from small_script import DATA, loss_of, train


def test_commit_steps_several_schedulers(parts):
    schedules = [torch.optim.lr_scheduler.ExponentialLR(opt, 0.5) for opt in parts.both]
    state = parts.state(a=schedules[0], b=schedules[1])
    train(parts, lambda job, loss: job.commit(loss, parts.both, schedules), state=state, steps=3)
    assert [opt.param_groups[0]["lr"] for opt in parts.both] == [0.1 / 8] * 2


def test_unsupported_scheduler_is_refused_before_the_update(parts):
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(parts.first)
    before = parts.body.weight.detach().clone()
    with pytest.raises(rh.ConfigError, match="job.commit cannot step a ReduceLROnPlateau, whose .* `then` of rh.Evaluation"):
        train(parts, lambda job, loss: job.commit(loss, parts.both, plateau), state=parts.state(plateau=plateau))
    assert torch.equal(before, parts.body.weight)
    with pytest.raises(rh.ConfigError, match="the third argument has to be a scheduler, not a int"):
        schedulers_of(3)


def test_scheduler_that_the_script_steps_is_refused(parts):
    schedule = torch.optim.lr_scheduler.ExponentialLR(parts.first, 0.5)

    def step(job, loss):
        job.commit(loss, parts.both, schedule)
        schedule.step()

    with pytest.raises(rh.NotCommitted, match=r"ExponentialLR.step\(\) outside of job.commit: .* remove the call"):
        train(parts, step, state=parts.state(schedule=schedule), steps=2)


def test_plateau_scheduler_follows_evaluations(parts, tmp_path):
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
    # A start from a checkpoint evaluates its state again.
    assert evaluated == [2, 4, 6, 6, 8]


def test_optimizer_without_a_learning_rate_trains(parts):
    for rate, reported in [(torch.tensor(0.5), 0.5), (0.25, 0.25)]:
        parts.first.param_groups[0]["lr"] = rate
        assert learning_rate(parts.both) == reported
    assert learning_rate([]) == 0.0
    parts.first.param_groups[0]["lr"] = None
    assert learning_rate(parts.both) != learning_rate(parts.both)

    class Relative(torch.optim.Optimizer):
        """Has no learning rate, like an Adafactor with relative steps."""

        def step(self, closure=None):
            for parameter in self.param_groups[0]["params"]:
                parameter.data -= 0.01 * (0 if parameter.grad is None else parameter.grad)

    for defaults in ({"lr": None}, {}):
        parts.first = Relative(parts.body.parameters(), defaults)
        train(parts, lambda job, loss: job.commit(loss, [parts.first, parts.second]))
