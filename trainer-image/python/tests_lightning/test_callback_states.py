"""The states of callbacks, which new workers and checkpoints of the job have."""

import math
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from roundhouse.lightning.callback_states import CallbackStates


class Keeps(Callback):
    """Keeps one value."""

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def sent(callback, other, stops=False):
    """Loads the state of a callback into another one, and returns that one's trainer."""
    trainer = SimpleNamespace(should_stop=False)
    row = CallbackStates([("one", callback)], SimpleNamespace(should_stop=stops)).state_dict()
    CallbackStates([("one", other)], trainer).load_state_dict(row)
    return trainer


@pytest.mark.parametrize(
    "value", [math.inf, math.nan, None, True, 3, 0.5, "a word", [1, {"two": [2.0]}], torch.tensor(0.5), torch.eye(2)]
)
def test_any_plain_value_arrives_as_it_was(value):
    other = Keeps("none")
    assert sent(Keeps(value), other, stops=True).should_stop
    assert type(other.value) is type(value) and repr(other.value) == repr(value)


def test_files_of_a_model_checkpoint_arrive_with_their_directory(tmp_path):
    one, other = (ModelCheckpoint(tmp_path / name, monitor="loss") for name in ("first", "second"))
    one.best_model_path, one.best_k_models = str(tmp_path / "first" / "best.ckpt"), {"best.ckpt": torch.tensor(0.5)}
    sent(one, other)
    assert other.dirpath == one.dirpath and other.best_k_models == one.best_k_models
    assert other.best_model_path == one.best_model_path


def test_patience_of_early_stopping_arrives(tmp_path):
    one, other = EarlyStopping("loss"), EarlyStopping("loss")
    one.wait_count, one.best_score = 2, torch.tensor(0.25)
    sent(one, other)
    assert other.wait_count == 2 and float(other.best_score) == 0.25


@pytest.mark.parametrize(
    ("value", "words"), [(object(), "it has a object"), ({1: 2}, "it has a dict"), ("x" * 70_000, "more than 65536 bytes")]
)
def test_state_that_cannot_be_sent_is_warned_of(value, words):
    other = Keeps("own")
    with pytest.warns(UserWarning, match=f"new workers do not get the state of the callback one: .*{words}"):
        sent(Keeps(value), other)
    assert other.value == "own"
