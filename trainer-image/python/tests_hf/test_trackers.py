"""Trackers of transformers in a worker that becomes rank 0 during the training."""

import os
from types import SimpleNamespace

import pytest
import transformers
from roundhouse.hf import Trainer
from roundhouse.hf.trackers import name_run
from small_trainer import Tiny, arguments, samples
from transformers.integrations import WandbCallback


class Tracker(WandbCallback):
    """W&B without its package, which a test must not report to. As there, a log needs a run, and
    rank 0 alone opens it."""

    def __init__(self):
        self._initialized, self.has_run, self.logged = False, False, []
        self._wandb = SimpleNamespace(log=self.log, run=SimpleNamespace(summary={}))
        self._log_model = SimpleNamespace(is_enabled=False)

    def setup(self, args, state, model, **_):
        self._initialized = True
        self.has_run |= state.is_world_process_zero

    def log(self, numbers):
        assert self.has_run, "You must call wandb.init() before wandb.log()"
        self.logged.append(numbers["train/global_step"])


class BecomesFirst(transformers.TrainerCallback):
    """Makes this process rank 1 until its second step."""

    def on_train_begin(self, args, state, control, **_):
        state.is_world_process_zero = False

    def on_step_end(self, args, state, control, **_):
        if state.global_step == 2:
            self.trainer._enter_generation(self.trainer.job)


def test_tracker_of_a_new_first_rank_opens_a_run(tmp_path):
    tracker, becomes_first = Tracker(), BecomesFirst()
    args = arguments(tmp_path, logging_strategy="steps", logging_steps=1)
    trainer = Trainer(model=Tiny(), args=args, train_dataset=samples(), global_batch_size=5, callbacks=[becomes_first, tracker])
    becomes_first.trainer = trainer
    trainer.train()
    assert tracker.logged[:2] == [2, 3]


def test_progress_bar_of_a_new_first_rank_begins(tmp_path, capfd):
    becomes_first = BecomesFirst()
    args = arguments(tmp_path, disable_tqdm=False)
    trainer = Trainer(model=Tiny(), args=args, train_dataset=samples(), global_batch_size=5, callbacks=[becomes_first])
    becomes_first.trainer = trainer
    steps = trainer.train().global_step
    assert f"{steps}/{steps}" in capfd.readouterr().err


@pytest.mark.parametrize("own", [None, "mine"])
def test_run_of_wandb_has_the_id_of_the_job_or_its_own(monkeypatch, own):
    monkeypatch.delenv("WANDB_RESUME", raising=False)
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    if own is not None:
        monkeypatch.setenv("WANDB_RUN_ID", own)
    # monkeypatch restores what name_run sets.
    monkeypatch.setattr(os, "environ", dict(os.environ))
    name_run("0c9f1e5a")
    assert (os.environ["WANDB_RUN_ID"], os.environ.get("WANDB_RESUME")) == ((own, None) if own else ("0c9f1e5a", "allow"))
