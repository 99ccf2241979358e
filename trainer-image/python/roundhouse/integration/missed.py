"""What a script does for a step that its rank has missed, to the state that it got from others."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch


@contextlib.contextmanager
def unchanged(entries: Iterable[Any], optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Undoes what the script does in this context to entries of ``rh.join(state=...)`` and to the
    options of its optimizer. A rank that has missed a step has the state of ranks that have done
    all of this, such as the update of an average of the weights."""
    kept = [(entry, _copy(entry)) for entry in entries]
    groups = [{name: copy.deepcopy(value) for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    yield
    for entry, content in kept:
        if isinstance(entry, torch.Tensor):
            entry.detach().copy_(content)
        else:
            entry.load_state_dict(content)
    for group, options in zip(optimizer.param_groups, groups):
        group.update(options)


def _copy(entry: Any) -> Any:
    return entry.detach().clone() if isinstance(entry, torch.Tensor) else copy.deepcopy(entry.state_dict())
