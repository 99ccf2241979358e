"""The row of bytes of a state: its entries, numbers, digests and copies."""

import ctypes

import pytest
import torch
from conftest import load
from roundhouse import errors
from roundhouse.ending import write_result
from roundhouse.optimizer import bytes_of
from roundhouse.packed import Packed
from roundhouse.staging import Staging
from roundhouse.state import InPlace, Row
from small_models import OPTIMIZERS, row_of, send, step, trained


def test_replaced_buffer_is_sent_and_receives():
    ours, theirs = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
    left, right = Row({"norm": ours}), Row({"norm": theirs})
    for number, module in enumerate((ours, theirs)):
        module.running_mean = torch.full((3,), 5.0 + number)
    send(left, right)
    assert theirs.running_mean.tolist() == [5.0, 5.0, 5.0]
    for other, words in [(torch.zeros(4), r"\[4\] of F32"), (None, "a NoneType"), (torch.zeros(3).double(), r"\[3\] of F64")]:
        ours.running_mean = other
        with pytest.raises(errors.StateError, match="norm.running_mean has changed since rh.join: it is " + words):
            send(left, right)


def test_result_has_all_names_of_tied_weights(tmp_path):
    model = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    write_result(tmp_path / "weights", model.state_dict())
    again = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False))
    again.load_state_dict(load(tmp_path / "weights"))
    assert torch.equal(again[0].weight, model[0].weight) and torch.equal(again[1].weight, model[0].weight)


def test_unsupported_entries_are_named():
    for state, words in [
        ({}, "rh.join needs state="),
        ({"thing": object()}, "state['thing'] is a object"),
        ({"model": torch.nn.Linear(1, 1), "n": 3}, "state['n'] is a int"),
        ({"z": torch.zeros(2, dtype=torch.complex64)}, "complex64"),
    ]:
        with pytest.raises(errors.StateError, match=words.replace("[", r"\[").replace("]", r"\]")):
            Row(state)


def test_numbers_flags_and_none_round_trip():
    structure = {"a": [1, -(2**70), 2.5, None, True], "b": ("text", torch.tensor([1.0, 2.0])), "c": {"d": float("inf")}}
    packed = Packed("x", structure)
    changed = {"a": [None, 7, 3, 4.0, False], "b": ("text", torch.tensor([3.0, 4.0])), "c": {"d": 1}}
    back = packed.unpack(packed.pack(changed), structure)
    assert back["a"] == [None, 7, 3, 4.0, False] and type(back["a"][3]) is float
    assert torch.equal(back["b"][1], torch.tensor([3.0, 4.0])) and back["c"] == {"d": 1}
    for other in [{**changed, "e": 1}, {**changed, "a": [1]}, {**changed, "b": ("other", changed["b"][1])}]:
        with pytest.raises(errors.StateError, match="has changed its structure"):
            packed.pack(other)
    with pytest.raises(errors.StateError, match="x.f .* is a object"):
        Packed("x", {"f": object()})


def test_integers_above_128_bits_are_refused():
    numbers = [2**128 - 1, 2**127, 2**127 - 1, -(2**127)]
    packed = Packed("x", [0] * 4)
    assert packed.unpack(packed.pack(numbers), [0] * 4) == numbers
    for number in (2**128, -(2**127) - 1):
        with pytest.raises(errors.StateError, match="x.0 of rh.join.* is an integer of 1"):
            Packed("x", [number])


@pytest.mark.parametrize("num_bytes", [1, 7, 64, 1000, 1 << 20])
def test_copy_through_two_buffers_keeps_the_state(num_bytes):
    parts = trained(OPTIMIZERS["adamw"], 1)
    step(*parts, 1)
    row = row_of(parts)
    memories = [(ctypes.c_uint8 * (row.num_bytes + 1))() for _ in range(2)]
    for memory, staging in zip(memories, (None, Staging(torch.device("cpu"), num_bytes))):
        row.staging = staging
        for start, end in [(0, row.num_bytes // 3), (row.num_bytes // 3, row.num_bytes), (row.num_bytes, row.num_bytes)]:
            row.copy_out(start, end, ctypes.addressof(memory) + start)
    assert any(memories[0]) and bytes(memories[0]) == bytes(memories[1])


def test_digest_of_a_state_detects_each_bit(parts):
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
