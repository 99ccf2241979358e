"""What the batches of a validation log, as bytes that the ranks can exchange."""

from __future__ import annotations

import json
import zlib
from typing import Any, NamedTuple

import torch

from ..errors import ConfigError

# The functions that Lightning accepts. The built-in ones treat NaN differently.
_REDUCTIONS: tuple[Any, ...] = (torch.mean, torch.sum, torch.min, torch.max, sum, min, max)


class Logged(NamedTuple):
    """A value that ``self.log`` got, with its options."""

    name: str
    value: torch.Tensor
    options: dict[str, Any]


def is_mean(reduce_fx: Any) -> bool:
    """Whether ``reduce_fx`` is the mean."""
    return reduce_fx is torch.mean or (isinstance(reduce_fx, str) and reduce_fx.lower() in ("mean", "avg"))


def row_of(batches: dict[int, list[Logged]]) -> torch.Tensor:
    """What batches have logged, by their indices, as bytes. Finite numbers and infinities keep all
    bits."""
    text = json.dumps({index: [_packed(one) for one in logged] for index, logged in batches.items()})
    return torch.frombuffer(bytearray(zlib.compress(text.encode())), dtype=torch.uint8)


def batches_of_row(row: torch.Tensor, device: torch.device) -> dict[int, list[Logged]]:
    """What :func:`row_of` got. ``device``: that of tensors that are not on the CPU."""
    batches = json.loads(zlib.decompress(row.numpy().tobytes()))
    return {int(index): [_unpacked(device, *one) for one in logged] for index, logged in batches.items()}


def _packed(one: Logged) -> list[Any]:
    reduction = one.options["reduce_fx"]
    if not isinstance(reduction, str):
        if reduction not in _REDUCTIONS:
            raise ConfigError(f"roundhouse.lightning: self.log({one.name!r}, reduce_fx={reduction}): give mean, sum, min or max")
        reduction = _REDUCTIONS.index(reduction)
    dtype = str(one.value.dtype).removeprefix("torch.")
    number: Any = one.value.item()
    if isinstance(number, complex):
        number = [number.real, number.imag]
    return [one.name, dtype, one.value.is_cpu, number, {**one.options, "reduce_fx": reduction}]


def _unpacked(device: torch.device, name: str, dtype: str, is_cpu: bool, number: Any, options: dict[str, Any]) -> Logged:
    if isinstance(number, list):
        number = complex(*number)
    value = torch.tensor(number, dtype=getattr(torch, dtype), device="cpu" if is_cpu else device)
    reduction = options["reduce_fx"]
    return Logged(name, value, {**options, "reduce_fx": reduction if isinstance(reduction, str) else _REDUCTIONS[reduction]})
