"""What a divided validation finds and sends: changes of attributes, random numbers, values that were
logged."""

import collections
import math
import random

import numpy
import pytest
import torch
from roundhouse.integration.numbers import num_packed, packed, unpacked
from roundhouse.lightning.kept import is_same, kept_by
from roundhouse.lightning.logged import Logged, batches_of_text, text_of
from roundhouse.seeding import States


class Meter:
    def __init__(self):
        self.total = 0.0
        self.counts = collections.Counter()


class Keeps(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))
        self.outputs, self.nested, self.meter = [], {"one": {"two": [1]}}, Meter()
        self.array = numpy.zeros(3)
        with torch.inference_mode():
            self.sum = torch.zeros(2)
        self.best = math.nan

    def forward(self, inputs):
        return inputs + self.mean


@torch.inference_mode()
def adds(module):
    module.sum += 1


CHANGES = [
    lambda module: module.outputs.append(1),
    lambda module: module.nested["one"]["two"].append(1),
    lambda module: module.nested["one"].update(two=[1]),
    lambda module: module.meter.__dict__.update(total=1.0),
    lambda module: module.meter.counts.update("a"),
    lambda module: module.mean.add_(1),
    lambda module: module.array.__iadd__(1),
    lambda module: setattr(module, "best", 1.0),
    lambda module: setattr(module, "new", None),
    lambda module: module.register_forward_hook(print),
    adds,
]


@pytest.mark.parametrize("change", CHANGES)
def test_change_of_what_a_module_keeps_is_found(change):
    module = Keeps()
    before = kept_by([module], ())
    module(torch.ones(2))
    assert is_same(before, kept_by([module], ()))
    change(module)
    assert not is_same(before, kept_by([module], ()))


@pytest.mark.parametrize("draw", [random.random, numpy.random.random, lambda: torch.rand(()), lambda: torch.randperm(3)])
def test_draw_of_a_random_number_is_found_and_undone(draw):
    before = States()
    assert before.is_same(States())
    draw()
    assert not before.is_same(States())
    before.restore()
    assert before.is_same(States())


OPTIONS = {"prog_bar": True, "on_step": None, "batch_size": 3, "sync_dist_group": None}
VALUES = [0.1, -0.0, math.inf, 1e-45, 2.0**-1074, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool])
@pytest.mark.parametrize("reduce_fx", ["mean", "MAX", torch.min, min])
def test_logged_values_arrive_with_all_bits(dtype, reduce_fx):
    values = [torch.tensor(value).to(dtype) for value in VALUES if math.isfinite(value) or dtype.is_floating_point]
    options = {**OPTIONS, "reduce_fx": reduce_fx}
    found = batches_of_text(text_of({7: [Logged("loss", value, options) for value in values]}), torch.device("cpu"))
    assert list(found) == [7]
    for value, (name, other, others) in zip(values, found[7]):
        assert (name, others, other.dtype) == ("loss", options, dtype)
        assert torch.equal(value, other) and torch.equal(value.signbit(), other.signbit())


@pytest.mark.parametrize(
    ("value", "options"), [("a word", {}), (torch.ones(()), {"sync_dist_group": object()}), (torch.ones(2), {})]
)
def test_value_that_cannot_be_sent_is_a_type_error(value, options):
    with pytest.raises(TypeError):
        text_of({0: [Logged("loss", value, {**OPTIONS, "reduce_fx": "mean", **options})]})


@pytest.mark.parametrize("length", [0, 1, 5, 6, 7, 100])
def test_bytes_arrive_as_numbers(length):
    content = random.Random(1).randbytes(length)
    numbers = packed(content)
    assert len(numbers) == num_packed(length) and all(math.isfinite(number) for number in numbers)
    assert unpacked(numbers, length) == content
