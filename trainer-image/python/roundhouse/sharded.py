"""Models whose parameters the processes of a replica share. FSDP2, tensor and pipeline parallelism
sum gradients within the replica; this module sums them over the replicas, when a step ends.

The sums are over what each process has of the gradients, so no parallelism has to be known here.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

from ._native import fault_point
from .errors import ConfigError
from .gradients import Gradients
from .local_parts import is_sharded, local, local_gradients
from .replica import Replica
from .step_numbers import Number
from .traces import shortened
from .updates import loss_sum, norms_of

if TYPE_CHECKING:
    from .groups import Group
    from .sampler import Step
    from .state import Row

# Bytes of gradients that are summed at once.
_BUCKET = 64 << 20


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
        _check_sharding(module, replica)
        # Also of frozen parameters, which may be trained later.
        self._ids = frozenset(id(parameter) for parameter in module.parameters() if _is_summed(parameter, replica))
        gradients.models.append(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        gradients = self._gradients
        if not (torch.is_grad_enabled() and getattr(self.module, "_orig_mod", self.module).training):
            return self.module(*args, **kwargs)
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


def _check_sharding(module: torch.nn.Module, replica: Replica) -> None:
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


class ColumnSums:
    """Sums the gradients of a step over the processes with the same shard, one of each replica."""

    def __init__(self, gradients: Gradients, replica: Replica, row: Row):
        self._gradients = gradients
        self._replica = replica
        self._row = row

    @torch.no_grad()
    def sum(self, parameters: Sequence[torch.Tensor], group: Group | None) -> None:
        """Sums what this process has of the gradients. An error of a lost peer is recorded, and the
        step is dropped later."""
        self._gradients.computed_at = time.perf_counter()
        _complete(parameters)
        if self._gradients.broken is not None:
            return
        if group is not None and self._gradients.step is not None:
            fault_point("Backward", group.rank, self._gradients.step.number)
        # With different samples the backward pass has weighted the gradients within the replica.
        weight = self._gradients.weight if self._replica.num_data == 1 else self._gradients.weight_of_replica
        column = None if group is None else group.column
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        try:
            if column is not None and group is not None:
                _align(trained, group)
            gradients = [part for part in (local(p.grad) for p in trained if p.grad is not None) if part.numel()]
            for bucket in _buckets(gradients):
                self._sum(bucket, weight, group if column is not None else None)
        except RuntimeError as error:
            self._gradients.broke(error)

    def _sum(self, parts: list[torch.Tensor], weight: float, group: Group | None) -> None:
        if group is None:
            if weight != 1.0:
                torch._foreach_mul_(parts, weight)
            return
        flat = torch.cat([part.reshape(-1) for part in parts])
        if weight == 0:
            flat.zero_()
        elif weight != 1.0:
            flat.mul_(weight)
        group.bounded(group.column.allreduce([flat])).wait()
        summed = torch.split(flat, [part.numel() for part in parts])
        torch._foreach_copy_(parts, [one.view_as(part) for one, part in zip(summed, parts)])

    @torch.no_grad()
    def own_square(self, parameters: Sequence[torch.Tensor]) -> float:
        """The sum of the squares of this process' share of the gradients: a part that several
        processes have counts once."""
        with_gradient = [parameter for parameter in parameters if parameter.grad is not None]
        parts = [local(parameter.grad) for parameter in with_gradient]
        if not parts:
            return 0.0
        shared_views = self._row.shared_views
        assert shared_views is not None
        copies = [shared_views.copies_of(parameter) for parameter in with_gradient]
        device = parts[0].device
        squares = torch.stack([norm.to(device, torch.float64) for norm in norms_of(parts)]).square()
        return float((squares / torch.tensor(copies, dtype=torch.float64, device=device)).sum())

    def numbers(
        self, loss: Number | None, weight: Number, step: Step, reduction: str, parameters: Sequence[torch.Tensor]
    ) -> tuple[Number, Number, float]:
        """This process' share of the loss and of its weight, and the norm of the whole gradient.

        Processes with the same samples may all know the loss, as in tensor parallelism, or one of
        them, as in a pipeline: it counts once.
        """
        replica = self._replica
        knows = [0.0] * replica.num_data
        knows[replica.data_index] = float(loss is not None)
        square, *known = replica.sum([self.own_square(parameters), *knows])
        if 0.0 in known:
            raise ConfigError(
                "job.commit(None, ...) in all processes with the same samples: give the loss in the process that has computed it"
            )
        norm = math.sqrt(square) if square >= 0 else math.nan
        if loss is None:
            return 0.0, 0.0, norm
        number = known[replica.data_index]
        return loss_sum(loss, step, reduction) / number, weight / number, norm


def clip(parameters: Sequence[torch.Tensor], norm: float, most: float | None) -> float:
    """Clips gradients of this norm as PyTorch does. Returns the norm."""
    if most is not None and most < norm + 1e-6 and math.isfinite(norm):
        if parts := local_gradients(parameters):
            torch._foreach_mul_(parts, most / (norm + 1e-6))
    return norm


def check_scaler(scaler: Any) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` for a scaler that scales."""
    if scaler is not None:
        raise ConfigError(
            "job.commit: a GradScaler finds infinite gradients in the shard of one process, and the others would not skip the step: "
            "train a sharded model in bfloat16, without a scaler"
        )


def _complete(parameters: Sequence[torch.Tensor]) -> None:
    """Completes gradients whose sums over the processes of the replica are pending, as sequence
    parallelism leaves them. The optimizer would do so later; norms need it now."""
    for parameter in parameters:
        gradient: Any = parameter.grad
        if gradient is not None and is_sharded(gradient) and any(one.is_partial() for one in gradient.placements):
            own: Any = parameter
            parameter.grad = gradient.redistribute(placements=own.placements)


def _align(parameters: Sequence[torch.Tensor], group: Group) -> None:
    """Makes the same parameters have gradients in all replicas: a pass may have left some out."""
    device = group.device
    has = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.float32).to(device)
    group.bounded(group.column.allreduce([has])).wait()
    for parameter, number in zip(parameters, has.tolist()):
        if number > 0 and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def _buckets(parts: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Tensors of one type and device, in their order, that together have a limited size."""
    open_: dict[Any, list[torch.Tensor]] = {}
    sizes: dict[Any, int] = {}
    for part in parts:
        key = part.dtype, part.device
        own = part.numel() * part.element_size()
        if key in open_ and sizes[key] + own > _BUCKET:
            yield open_.pop(key)
            sizes[key] = 0
        open_.setdefault(key, []).append(part)
        sizes[key] = sizes.get(key, 0) + own
    yield from open_.values()


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
            group = unit._get_fsdp_state()._fsdp_param_group
            for parameter in [] if group is None else group.fsdp_params:
                parameter.unsharded_accumulated_grad = None
                whole = getattr(parameter, "_unsharded_param", None)
                if whole is not None:
                    whole.grad = None


def _units(module: torch.nn.Module) -> list[Any]:
    """The modules to which ``fully_shard`` was applied."""
    return [unit for unit in module.modules() if hasattr(unit, "set_requires_gradient_sync")]
