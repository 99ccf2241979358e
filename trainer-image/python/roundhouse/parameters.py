"""Checks that the tensors of the state are complete, on each rank or in its replica, and include
everything that its optimizers train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .errors import StateError
from .local_parts import is_sharded, local
from .replica import current
from .traces import shortened


def check_whole(name: str, tensor: torch.Tensor) -> None:
    """Raises :class:`~roundhouse.errors.StateError` for a tensor without values yet, or if a rank
    has only a part of it and is no process of a replica."""
    if torch.nn.parameter.is_lazy(tensor):
        raise StateError(
            f"{name} of rh.join(state=...) has no shape yet, because its module is lazy: run one batch through the model before "
            "rh.join, and before its optimizer is made"
        )
    if is_sharded(tensor) and current() is None:
        raise StateError(
            f"{name} of rh.join(state=...) is a DTensor, of which each rank has a part, as of fully_shard and parallelize_module: make "
            "its mesh with rh.replica_mesh(), in a job with workers.sharded; or leave the sharding out"
        )
    if tensor.is_meta or is_sharded(tensor) and local(tensor).is_meta:
        raise StateError(
            f"{name} of rh.join(state=...) is on the device meta and has no values yet: call model.to_empty(device=...) and initialize "
            "it before rh.join"
        )


def check_parameters(
    entries: dict[str, Any], tensors: Sequence[torch.Tensor], others: Callable[[], Sequence[torch.Tensor]]
) -> None:
    """Checks the optimizers among the entries of a state.

    ``tensors``: the tensors of the modules, and tensors that are entries. ``others``: tensors in
    objects with a ``state_dict``; called only if a parameter is not among ``tensors``.

    Raises :class:`~roundhouse.errors.StateError` for an optimizer that trains another tensor: new
    workers would not receive it, and no checkpoint would contain it. Frozen parameters may be
    missing, because an optimizer does not change them.
    """
    ids = {id(tensor) for tensor in tensors}
    memory: set[Any] = set()
    for name, entry in entries.items():
        if not isinstance(entry, torch.optim.Optimizer):
            continue
        trained = [parameter for group in entry.param_groups for parameter in group["params"] if parameter.requires_grad]
        missing = [parameter for parameter in trained if id(parameter) not in ids]
        if missing:
            # The parameter may be a view of a tensor of the state.
            memory = memory or {_memory(tensor) for tensor in [*tensors, *others()]}
            missing = [parameter for parameter in missing if _memory(parameter) not in memory]
        if missing:
            shapes = shortened([str(list(parameter.shape)) for parameter in missing])
            raise StateError(
                f"{name} of rh.join(state=...) trains {len(missing)} of its {len(trained)} parameters outside of the state "
                f"(shapes: {shapes}): new workers and checkpoints would not have them; add the module or the tensor, as in "
                f'state={{..., "head": head}}, or leave them out of the {type(entry).__name__}'
            )


def check_freed(entries: dict[str, Any]) -> None:
    """Raises :class:`~roundhouse.errors.StateError` for an optimizer of parameters that FSDP2 has
    freed. After a pass the whole parameters may be in the place of the sharded ones."""
    for name, entry in entries.items():
        groups = entry.param_groups if isinstance(entry, torch.optim.Optimizer) else []
        if any(_is_freed(parameter) for group in groups for parameter in group["params"]):
            raise StateError(
                f"{name} of rh.join(state=...) has whole parameters of a pass, which FSDP2 has freed: make the optimizer before the "
                "first pass, such as an evaluation, or call model.reshard() before it is made"
            )


def _is_freed(parameter: torch.Tensor) -> bool:
    return not is_sharded(parameter) and parameter.numel() > 0 and parameter.untyped_storage().size() == 0


def _memory(tensor: torch.Tensor) -> tuple[Any, int]:
    try:
        return tensor.device, tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        # A sparse tensor and some subclasses have no address. No other tensor is a view of them.
        return None, id(tensor)
