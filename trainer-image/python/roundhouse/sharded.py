"""Models whose parameters the processes of a replica share. FSDP2, tensor and pipeline parallelism
sum gradients within the replica; :mod:`.column_sums` sums them over the replicas.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from .errors import ConfigError
from .gradients import Gradients
from .replica import Replica
from .traces import shortened


class Scale(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, factor: float) -> torch.Tensor:
        context.factor = factor
        # A script may change a loss in place, which PyTorch refuses for a view of an input.
        return tensor.clone() if tensor.dim() == 0 else tensor.view_as(tensor)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        # The gradients of a process without samples may be NaN.
        if context.factor == 1.0:
            return gradient, None
        return (gradient * context.factor if context.factor else torch.zeros_like(gradient)), None


scale: Any = Scale.apply


class ShardedModel(torch.nn.Module):
    """A module whose parameters a replica shares. Its attributes are those of the module."""

    def __init__(self, module: torch.nn.Module, gradients: Gradients, replica: Replica):
        super().__init__()
        self.module = module
        self._gradients = gradients
        self._replica = replica
        # After a pass FSDP2 may have whole tensors in the place of the parameters.
        reshard([module])
        check_sharding(module, replica)
        # Also of frozen parameters, which may be trained later.
        self._ids = frozenset(id(parameter) for parameter in module.parameters() if _is_summed(parameter, replica))
        # By the id of a parameter: what its gradient has to be multiplied by before the sum.
        self.factors = _factors(module, replica)
        gradients.models.append(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        gradients = self._gradients
        if not (torch.is_grad_enabled() and getattr(self.module, "_orig_mod", self.module).training):
            return self.module(*args, **kwargs)
        self._replica.begin_pass()
        if gradients.accumulates:
            gradients.summed.discard(self._ids)
        else:
            gradients.summed.add(self._ids)
        if self._replica.num_data == 1:
            return self.module(*args, **kwargs)
        # FSDP takes the mean over the processes with other samples. So the gradient of each is
        # multiplied by its share of the samples of the replica.
        share = gradients.weight / gradients.weight_of_replica if gradients.weight else 0.0
        factor = share * self._replica.num_data
        args, kwargs = tree_map(lambda value: _unscaled(value, factor), (args, kwargs))
        return self._scaled(self.module(*args, **kwargs), factor)

    def _scaled(self, result: Any, factor: float) -> Any:
        """Multiplies the gradients of what the module returns."""
        found = False

        def scaled(value: Any) -> Any:
            nonlocal found
            if not (isinstance(value, torch.Tensor) and value.requires_grad):
                return value
            found = True
            return scale(value, factor)

        result = tree_map(scaled, result)
        if not found:
            raise ConfigError(
                f"job.model: {type(self.module).__name__} has returned no tensor with a gradient, alone or in tuples, lists and dicts: its "
                "gradients would not be weighted by the samples of each process; return the tensors themselves, or freeze nothing "
                "that trains"
            )
        return result

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Passes within this context accumulate gradients without summing them over the processes.
        Use it for all passes of a step except the last one."""
        units = _units(self.module)
        before, self._gradients.accumulates = self._gradients.accumulates, True
        for unit in units:
            unit.set_requires_gradient_sync(False, recurse=False)
        try:
            yield
        finally:
            self._gradients.accumulates = before
            for unit in units:
                unit.set_requires_gradient_sync(not before, recurse=False)

    def check(self) -> None:
        """Nothing is summed before the commit."""

    def drop(self) -> None:
        """No hook belongs to a generation."""

    def take(self, options: dict[str, Any]) -> None:
        """Raises :class:`~roundhouse.errors.ConfigError` for options, which are those of DDP."""
        if options:
            raise ConfigError(f"job.model of a sharded model takes no options of DDP: leave out {', '.join(options)}")

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)


def _unscaled(value: Any, factor: float) -> Any:
    """Undoes the factor for the gradient that leaves a module: another module, or another pass of
    this one, may have computed the tensor, and multiplies its gradient, too."""
    if not (isinstance(value, torch.Tensor) and value.requires_grad and factor):
        return value
    # A module may change its input in place, which PyTorch refuses for a view.
    return scale(value, 1.0 / factor).clone()


def _is_summed(parameter: Any, replica: Replica) -> bool:
    """Whether a parameter is sharded over the processes of the replica that have other samples."""
    mesh = getattr(parameter, "device_mesh", None)
    return replica.num_data == 1 or mesh is not None and replica.of_data.issubset(mesh.mesh.flatten().tolist())


def check_sharding(module: torch.nn.Module, replica: Replica) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` if gradients would not be summed over the
    processes of the replica that have other samples."""
    parameters = module.named_parameters()
    plain = [name for name, parameter in parameters if parameter.requires_grad and not _is_summed(parameter, replica)]
    if plain:
        raise ConfigError(
            f"job.model: {shortened(plain)} of {type(module).__name__} would train on the samples of one process only: apply "
            "fully_shard(model, mesh=mesh) to the whole model after its parts, with the mesh of rh.replica_mesh(); if all processes "
            'compute the same samples, give rh.replica_mesh(..., data=())'
        )


def _factors(module: torch.nn.Module, replica: Replica) -> dict[int, float]:
    """The factors of gradients of which FSDP2 does not take the mean over all processes with other
    samples, by the ids of parameters.

    Experts are sharded over such processes. An all-to-all brings them the tokens of all, so their
    gradient is a sum.
    """
    averaged: dict[int, int] = {}
    for unit in _units(module) if replica.num_data > 1 else ():
        for group in _groups(unit):
            shards = group.mesh_info.mesh.mesh.flatten().tolist()
            for parameter in group.fsdp_params:
                averaged[id(parameter.sharded_param)] = len(replica.of_data.intersection(shards))
    factors = {id(parameter): averaged.get(id(parameter), 1) / replica.num_data for parameter in module.parameters()}
    return {key: factor for key, factor in factors.items() if factor != 1}


def kind_of(entry: Any) -> str:
    """The class of an entry of the state as the script has written it. ``fully_shard`` gives a
    module another one, and other numbers of processes may be sharded in another way."""
    kinds = type(entry).__mro__
    is_unit = hasattr(entry, "set_requires_gradient_sync") and kinds[0].__name__.startswith("FSDP") and len(kinds) > 2
    return kinds[2].__name__ if is_unit else kinds[0].__name__


def reshard(modules: Sequence[torch.nn.Module]) -> None:
    """Frees whole parameters that FSDP2 has kept after a pass, such as those of the last module
    after an evaluation."""
    for module in modules:
        for unit in _units(module):
            unit.reshard()


def forget_accumulated(modules: Sequence[torch.nn.Module]) -> None:
    """Drops what FSDP2 has accumulated for whole parameters in passes without sums. The next pass
    with a sum would add it."""
    for module in modules:
        for unit in _units(module):
            for group in _groups(unit):
                # Sums over one of two dimensions of a mesh.
                group._partial_reduce_output = None
                for parameter in group.fsdp_params:
                    whole = getattr(parameter, "_unsharded_param", None)
                    if whole is not None:
                        whole.grad = None
                    # In PyTorch 2.15 this is the gradient of the whole parameter, and has no
                    # setter.
                    if parameter.unsharded_accumulated_grad is not None:
                        parameter.unsharded_accumulated_grad = None


def _groups(unit: Any) -> Sequence[Any]:
    """What FSDP2 has for the parameters of a module."""
    state = unit._get_fsdp_state()
    # PyTorch 2.15 has several groups if the parameters have several meshes.
    groups: Sequence[Any] | None = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [] if state._fsdp_param_group is None else [state._fsdp_param_group]
    return groups


def _units(module: torch.nn.Module) -> list[Any]:
    """The modules to which ``fully_shard`` was applied."""
    return [unit for unit in module.modules() if hasattr(unit, "set_requires_gradient_sync")]
