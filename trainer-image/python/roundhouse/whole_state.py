"""Whole tensors of a module whose parameters a replica shares."""

from __future__ import annotations

from typing import Any

import torch

from .local_parts import is_sharded
from .replica import Replica
from .sharded import reshard


@torch.no_grad()
def whole_state(module: torch.nn.Module, replica: Replica) -> dict[str, torch.Tensor]:
    """The ``state_dict`` of the whole model in host memory, in the first process of the replica;
    others get an empty dict. All processes of the replica must call it."""
    reshard([module])
    state = {name: tensor for name, tensor in module.state_dict(keep_vars=True).items() if isinstance(tensor, torch.Tensor)}
    names = [[name, list(tensor.shape), str(tensor.dtype)] for name, tensor in state.items()]
    of_all = replica.gather("result", names)
    order: dict[str, list[Any]] = {}
    for shard, those in enumerate(of_all):
        for name, shape, dtype in those:
            order.setdefault(name, [shard, shape, dtype])
    result = {}
    for name, (first, shape, dtype) in order.items():
        whole: Any = state.get(name)
        if whole is not None:
            # A collective of the processes that have a part of it.
            whole = whole.full_tensor() if is_sharded(whole) else whole.detach()
        if first > 0:
            own = torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
            if replica.shard == first and whole is not None:
                own.copy_(whole)
            replica.broadcast(own, first)
            whole = own
        if replica.shard == 0 and whole is not None:
            result[name] = whole.cpu()
    return result
