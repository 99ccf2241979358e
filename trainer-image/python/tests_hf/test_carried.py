"""Values that a new worker gets from rank 0, beside the model."""

import math
from types import SimpleNamespace

import pytest
from roundhouse.hf.carried import Carried, Exported


class Best:
    """A callback that exports a value, which begins as infinity or None."""

    def __init__(self, value):
        self.value = value

    def state(self):
        return {"args": {}, "attributes": {"value": self.value}}


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, None, True, 3, 0.5, "a word"])
def test_any_value_arrives_as_finite_numbers(value):
    state = SimpleNamespace(best_metric=math.nan, best_global_step=7)
    stopped, control = SimpleNamespace(should_training_stop=True), SimpleNamespace(should_training_stop=False)
    exported = Exported()
    exported.step = 4
    numbers = Carried(lambda: state, lambda: stopped, [Best(value)], exported).numbers()
    assert all(math.isfinite(number) for number in numbers)

    joined, callback, known = SimpleNamespace(best_metric=None, best_global_step=None), Best(math.inf), Exported()
    Carried(lambda: joined, lambda: control, [callback], known).load(numbers)
    assert known.step == 4
    assert math.isnan(joined.best_metric) and joined.best_global_step == 7 and control.should_training_stop
    found = callback.value
    # A word cannot be sent, so the newcomer keeps its own value.
    wanted = math.inf if isinstance(value, str) else value
    assert type(found) is type(wanted) and (found == wanted or (found != found and wanted != wanted))
