"""What the loss of a pass is divided by."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..errors import ConfigError

# Relative difference of losses that count as equal. The loss functions differ by whole factors.
_TOLERANCE = 1e-4


def divides(loss_of: Callable[[Any], float], items: Any) -> bool | None:
    """Whether a loss function divides a sum by the number of items that it is given.

    Models accept the number and ignore it, such as those that classify sequences: their loss is a
    mean. So this measures: ``loss_of(number)`` is the loss of one pass, which has ``items``.
    Returns None if that loss is 0 or not finite, which proves nothing.

    Raises :class:`~roundhouse.errors.ConfigError` if only a part of the loss is divided.
    """
    try:
        once, again, twice = loss_of(items), loss_of(items), loss_of(2 * items)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"roundhouse.hf: the first step measures the loss in eval mode, and that fails: {error}; let the model compute its loss "
            "in eval mode, too"
        ) from error
    if once == 0 or not (math.isfinite(once) and math.isfinite(twice)):
        return None
    if not math.isclose(once, again, rel_tol=_TOLERANCE):
        raise ConfigError(
            f"roundhouse.hf: in eval mode, with the same random numbers, the loss of a pass is {once:.6g} and then {again:.6g}; the "
            "first step measures whether it is divided by num_items_in_batch, so let it depend on the weights and the pass alone"
        )
    for result, wanted in ((True, once / 2), (False, once)):
        if math.isclose(twice, wanted, rel_tol=_TOLERANCE):
            return result
    raise ConfigError(
        f"roundhouse.hf: the loss is {once:.6g} with num_items_in_batch={float(items):g} and {twice:.6g} with twice that number: "
        "a part of it is divided by the number, and a part is not, such as the loss of a router; the gradient would depend on the "
        "number of workers"
    )
