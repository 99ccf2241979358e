"""What a batch of a validation logs, as text that the ranks can exchange."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import torch

# The functions that Lightning accepts. The built-in ones treat NaN differently.
_REDUCTIONS: tuple[Any, ...] = (torch.mean, torch.sum, torch.min, torch.max, sum, min, max)


class Logged(NamedTuple):
    """A value that ``self.log`` got, with its options."""

    name: str
    value: Any
    options: dict[str, Any]


def is_mean(reduce_fx: Any) -> bool:
    """Whether a value of ``reduce_fx`` stands for the mean."""
    return reduce_fx is torch.mean or (isinstance(reduce_fx, str) and reduce_fx.lower() in ("mean", "avg"))


def text_of(batches: dict[int, list[Logged]]) -> str:
    """What batches have logged, by their indices. All bits of a number are kept. Raises TypeError
    if a value or an option cannot be sent, such as a metric of torchmetrics."""
    return json.dumps({index: [_row(one) for one in logged] for index, logged in batches.items()})


def batches_of_text(text: str, device: torch.device) -> dict[int, list[Logged]]:
    """What :func:`text_of` got. ``device``: that of tensors that are not on the CPU."""
    return {int(index): [_logged(row, device) for row in rows] for index, rows in json.loads(text).items()}


def _row(one: Logged) -> list[Any]:
    if not isinstance(one.value, torch.Tensor) or one.value.numel() != 1:
        raise TypeError(f"{one.name} is a {type(one.value).__name__}")
    options = {**one.options, "reduce_fx": _reduction_row(one.options["reduce_fx"])}
    if not all(value is None or isinstance(value, (bool, int, str)) for value in options.values()):
        raise TypeError(f"{one.name} has an option that cannot be sent")
    return [one.name, str(one.value.dtype).removeprefix("torch."), one.value.is_cpu, one.value.item(), options]


def _logged(row: list[Any], device: torch.device) -> Logged:
    name, dtype, is_cpu, number, options = row
    value = torch.tensor(number, dtype=getattr(torch, dtype), device="cpu" if is_cpu else device)
    reduction = options["reduce_fx"]
    return Logged(name, value, {**options, "reduce_fx": reduction if isinstance(reduction, str) else _REDUCTIONS[reduction]})


def _reduction_row(reduction: Any) -> str | int:
    if isinstance(reduction, str):
        return reduction
    for index, known in enumerate(_REDUCTIONS):
        if reduction is known:
            return index
    raise TypeError("a reduction that Lightning does not accept")
