"""How the loss of a pass counts: by its labels, or by its samples where it has none."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..errors import ConfigError
from ..replica import Replica
from ..sampler import Step
from .lockstep import Lockstep
from .passes import divides

# The label that the losses of PyTorch and transformers leave out.
IGNORED_LABEL = -100
# Relative difference of losses that count as equal, in 32 bits and in 16 bits. At the beginning a
# loss with class weights is almost the mean.
_TOLERANCE, _TOLERANCE_16_BITS = 1e-4, 2e-3
# Number of passes and of steps that measure the loss.
_TRIES = 8


class Weight(NamedTuple):
    """How the loss of a pass counts."""

    # Number of items that the loss function gets.
    divisor: Any
    # What the loss of the pass is multiplied by.
    factor: float
    # Number of labels or samples of the pass.
    items: Any


class Weighing:
    """Finds out with the first passes what the loss of a model is a mean of.

    ``loss_of(inputs, number, seed=0)``: the loss of a pass for that number of items, or for None,
    without gradients and with the random numbers of the seed. ``shifts``: whether the loss ignores
    the first label of each sequence, where that cannot be measured. ``is_exact``: whether the model
    computes in at least 32 bits. ``replica``: the processes that share the model.
    """

    def __init__(self, loss_of: Callable[..., float], *, shifts: bool, is_exact: bool, replica: Replica | None = None):
        self._loss_of = Lockstep(loss_of, replica)
        self._fallback = shifts
        self._tolerance = _TOLERANCE if is_exact else _TOLERANCE_16_BITS
        # None until they were measured, by this rank or another one.
        self._divides: bool | None = None
        self._shifts: bool | None = None
        # The generation of the last step, and its first step.
        self._generation, self._first = -1, 0
        # Passes to measure that with: not each proves it.
        self._tries = _TRIES
        self._is_compared = False

    def prepare(self, step: Step, passes: Sequence[tuple[Any, Any]], summed: Callable[[Sequence[float]], list[float]]) -> None:
        """Measures the loss with the passes of a step, and agrees with the other ranks on the
        results. All ranks call it in each step.

        ``passes``: the inputs of each pass, and the number that the Trainer of transformers gives
        to the loss function, or None. ``summed`` sums numbers over the ranks.
        """
        if step.generation != self._generation:
            # New ranks have measured nothing yet.
            self._generation, self._first = step.generation, step.number
        elif None not in (self._divides, self._shifts) or step.number >= self._first + _TRIES:
            return
        with self._loss_of.together(passes[0][0]):
            for inputs, items in passes:
                self._measure(inputs, items)
        facts = {"is divided by num_items_in_batch": self._divides, "ignores the first label of each sequence": self._shifts}
        found = summed([float(fact is value) for fact in facts.values() for value in (True, False)])
        for words, yes, no in zip(facts, found[::2], found[1::2]):
            if yes and no:
                raise ConfigError(
                    f"roundhouse.hf: the loss {words} as {yes:.0f} ranks have measured, and not as {no:.0f} others have: give all "
                    "workers the same model, and let all samples have the same entries"
                )
        self._divides, self._shifts = (
            True if yes else False if no else None for yes, no in zip(found[::2], found[1::2])
        )

    def weight(self, inputs: Any, size: int, items: Any) -> Weight:
        """The weight of a pass of ``size`` samples. ``items``: see :meth:`prepare`."""
        found = self._weight(inputs, size, items)
        if not self._is_compared:
            with self._loss_of.together(inputs):
                if size > 1:
                    self._compare(inputs, size, items)
            self._is_compared = self._loss_of.any(size > 1)
        return found

    def _compare(self, inputs: Any, size: int, items: Any) -> None:
        """Warns if the loss of a pass is not that of its halves together."""

        def total(part: Any, num_samples: int, seed: int = 0) -> float:
            weight = self._weight(part, num_samples, items)
            return self._loss_of(part, weight.divisor, seed) * weight.factor

        try:
            parts = halves(inputs, size)
            whole = total(inputs, size)
            if parts is None or whole != total(inputs, size, seed=1):
                return  # The halves would have other random numbers.
            apart = total(parts[0], size // 2) + total(parts[1], size - size // 2)
        except Exception:
            return  # The model takes no halves, or has no loss in eval mode.
        if math.isfinite(apart) and not math.isclose(whole, apart, rel_tol=self._tolerance):
            warnings.warn(
                f"roundhouse.hf: the loss of a pass times its labels or samples is {whole:.4g}, and that of its two halves {apart:.4g}: "
                "it is no mean over them, so the weights depend on the number of workers and on per_device_train_batch_size; "
                "see docs/guides/hugging-face.md, What is lost",
                stacklevel=2,
            )

    def _measure(self, inputs: Any, items: Any) -> None:
        if items is not None and self._divides is None:
            self._divides = divides(lambda number: self._loss_of(inputs, number), items)
        labels = inputs.get("labels") if isinstance(inputs, Mapping) and "shift_labels" not in inputs else None
        if self._divides or self._shifts is not None or self._tries == 0 or not torch.is_tensor(labels):
            return
        if labels.ndim == 2 and not labels.is_floating_point():
            self._tries -= 1
            with contextlib.suppress(Exception):  # The model may have no loss in eval mode.
                self._shifts = ignores_first_label(lambda other: self._loss_of({**inputs, "labels": other}, None), labels)

    def _weight(self, inputs: Any, size: int, items: Any) -> Weight:
        if items is not None and self._divides:
            # A loss that is divided becomes a sum.
            return Weight(torch.ones_like(items), 1.0, items)
        labels = inputs["labels"] if isinstance(inputs, Mapping) and "labels" in inputs else None
        if not torch.is_tensor(labels):
            return Weight(None, size, size)
        if "shift_labels" in inputs:
            labels = inputs["shift_labels"]
        elif labels.ndim > 1 and (self._fallback if self._shifts is None else self._shifts):
            labels = labels[..., 1:]
        # A loss that is not divided was a mean.
        count = int(labels.ne(IGNORED_LABEL).sum())
        return Weight(None, count, count)


def ignores_first_label(loss_of: Callable[[Any], float], labels: Any) -> bool | None:
    """Whether a loss ignores the first label of each sequence, such as that of a causal language
    model, which predicts each label from those before it.

    The losses of own models are not known, so this changes labels to other ones of the same pass.
    Returns None if that proves nothing.
    """
    used = labels[labels != IGNORED_LABEL]
    if used.numel() == 0:
        return None
    least, most = used.min(), used.max()
    other = torch.where(labels == most, least, most)
    changed = torch.where(labels == IGNORED_LABEL, labels, other)
    first, rest = labels.clone(), changed.clone()
    first[:, 0], rest[:, 0] = changed[:, 0], labels[:, 0]
    if torch.equal(first, labels):
        return None
    loss = loss_of(labels)
    if loss != loss_of(labels):
        return None
    if loss != loss_of(first):
        return False
    return True if loss != loss_of(rest) else None


def nothing(model: torch.nn.Module) -> Any:
    """The loss of a pass without labels: zero, with gradients of zero, because a mean over no
    labels is not a number, and neither are its gradients."""
    return sum((weight * 0).sum() for weight in model.parameters() if weight.requires_grad)


def with_labels(inputs: Any) -> Any:
    """A pass that does not count, with a label in place of each one that the loss leaves out: the
    gradient of a mean over no labels is not a number."""
    if not isinstance(inputs, Mapping):
        return inputs
    filled = dict(inputs)
    for name in ("labels", "shift_labels"):
        labels = filled.get(name)
        if torch.is_tensor(labels) and not labels.is_floating_point():
            filled[name] = labels.masked_fill(labels == IGNORED_LABEL, 0)
    return filled


def halves(inputs: Any, size: int) -> tuple[Any, Any] | None:
    """The first and the last samples of a pass. None if an entry is not divided by samples."""
    if not all(torch.is_tensor(value) and value.ndim and len(value) == size for value in inputs.values()):
        return None
    return {name: value[: size // 2] for name, value in inputs.items()}, {name: value[size // 2 :] for name, value in inputs.items()}
