"""Files of a model whose parameters the processes of a replica share: they hold whole tensors, as
those of a model in one process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_map

from ..local_parts import block_of, is_sharded
from ..replica import Replica
from ..sharded import reshard
from ..whole_state import whole_state


def whole_weights(model: torch.nn.Module, replica: Replica) -> dict[str, torch.Tensor]:
    """The ``state_dict`` of the whole model in the first process of the replica, all of which must
    call this. Tied weights stay one tensor, so that transformers writes them once."""
    state, first_names = whole_state(model, replica), dict[int, str]()
    for name, tensor in model.state_dict(keep_vars=True).items():
        first = first_names.setdefault(id(tensor), name)
        if name in state:
            state[name] = state[first]
    return state


@torch.no_grad()
def whole_optimizer_state(optimizer: Any, replica: Replica) -> dict[str, Any]:
    """The ``state_dict`` of an optimizer with whole tensors, in the first process of the replica.
    All processes of the replica must call it."""

    def whole(value: Any) -> Any:
        if not torch.is_tensor(value):
            return value
        tensor: Any = value
        found = tensor.full_tensor() if is_sharded(tensor) else tensor
        # Other processes have no use for the memory of the whole state.
        return found.cpu() if replica.shard == 0 else None

    state: dict[str, Any] = tree_map(whole, optimizer.state_dict())
    return state


@contextlib.contextmanager
def loads_whole_tensors(model: torch.nn.Module) -> Iterator[None]:
    """In this context ``model.load_state_dict`` takes whole tensors, and each process keeps its
    parts of them."""
    changed: Any = model
    load = model.load_state_dict
    reshard([model])

    def load_parts(state: Mapping[str, Any], *args: Any, **options: Any) -> Any:
        own = model.state_dict(keep_vars=True)
        return load({name: _part_of(whole, own.get(name)) for name, whole in state.items()}, *args, **options)

    changed.load_state_dict = load_parts
    try:
        yield
    finally:
        del changed.load_state_dict


def _part_of(whole: Any, own: Any) -> Any:
    """A whole tensor as one that is sharded as ``own``."""
    # PEFT shards the weights of an adapter itself.
    if is_sharded(whole) or not is_sharded(own):
        return whole
    part, layout = block_of(whole, own).to(own.device), {"shape": own.shape, "stride": own.stride()}
    return type(own.data).from_local(part, own.device_mesh, own.placements, run_check=False, **layout)
