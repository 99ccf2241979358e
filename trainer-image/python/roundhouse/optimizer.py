"""The state of an optimizer as views of the row.

PyTorch's optimizers create their state for a parameter in their first step. A process that joins
later needs the types and shapes before. They are learned from steps of the optimizer with gradients
of zero, which are undone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch

from .errors import StateError, is_own
from .local_parts import Part, is_sharded, local, part_of

# Bytes of parameters per undone step of an optimizer. The step takes a few times this much memory.
_PORTION = 64 << 20


class Groups:
    """The ``param_groups`` without the parameters, as an object with a ``state_dict``."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self._optimizer = optimizer

    def state_dict(self) -> list[dict[str, Any]]:
        groups = self._optimizer.param_groups
        return [{key: value for key, value in group.items() if key != "params"} for group in groups]

    def load_state_dict(self, groups: list[dict[str, Any]]) -> None:
        for group, loaded in zip(self._optimizer.param_groups, groups):
            group.update(loaded)


class OptimizerState:
    """The state that an optimizer keeps for each parameter.

    ``names``: the names of parameters by their ids, in a replica, whose processes may have
    different parameters. Otherwise parameters are named by their place in the optimizer.
    """

    def __init__(self, name: str, optimizer: torch.optim.Optimizer, names: dict[int, str] | None = None):
        self.name = name
        self.optimizer = optimizer
        self.groups = Groups(optimizer)
        self.parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.is_of_replica = names is not None
        known = names or {}
        self.labels = [known.get(id(parameter), str(index)) for index, parameter in enumerate(self.parameters)]
        self._templates = _templates(name, optimizer, self.parameters)
        self._received: dict[tuple[int, str], torch.Tensor] = {}
        self._flags: torch.Tensor | None = None

    def views(self, dtypes: dict[torch.dtype, str]) -> list[Any]:
        """A view of the flags that show for which parameters there is state, and a view of each
        part of the state."""
        numbers = range(len(self.parameters))
        views: list[Any] = [Flags(self, index) for index in numbers] if self.is_of_replica else [Flags(self)]
        for index, kept in enumerate(self._templates):
            for key, template in kept.items():
                views.append(Kept(self, index, key, template, dtypes))
        return views

    def flags(self) -> torch.Tensor:
        """One byte for each parameter: whether the optimizer has state for it.

        Raises StateError if the optimizer has state that it did not create in its first step:
        checkpoints have no place for it, and ranks that receive the rest would train without it.
        """
        state = self.optimizer.state
        _check_keys(self.name, self.optimizer, state)
        for parameter, known in zip(self.parameters, self._templates):
            later = [key for key, value in state.get(parameter, {}).items() if value is not None and key not in known]
            if later:
                raise StateError(
                    f"{self.name} of rh.join(state=...), a {type(self.optimizer).__name__}, keeps {', '.join(later)} since a step "
                    "after its first: switch on what you change later, such as momentum or amsgrad, before rh.join"
                )
        kept = [1 if state.get(parameter) else 0 for parameter in self.parameters]
        return torch.tensor(kept, dtype=torch.uint8)

    def receive_flags(self, start: int, piece: torch.Tensor) -> None:
        if self._flags is None:
            self._flags = self.flags()
        self._flags[start : start + piece.numel()] = piece

    def receive(self, index: int, key: str, start: int, piece: torch.Tensor) -> None:
        whole = self._received.get((index, key))
        if whole is None:
            whole = self._received[index, key] = bytes_of(self.current(index, key)).clone().cpu()
        whole[start : start + piece.numel()] = piece

    def current(self, index: int, key: str) -> torch.Tensor:
        """A part of the state as a tensor; zeros if it does not exist yet."""
        template = self._templates[index][key]
        value = self.optimizer.state.get(self.parameters[index], {}).get(key)
        if value is None:
            return torch.zeros(template.shape, dtype=template.dtype)
        if not isinstance(value, torch.Tensor):
            return torch.tensor(value, dtype=template.dtype)
        value = local(value)
        if (value.shape, value.dtype) != (template.shape, template.dtype):
            raise StateError(
                f"{self.name}.{key}.{index} of rh.join(state=...), a {type(self.optimizer).__name__}, has changed since rh.join: it is "
                f"{list(value.shape)} of {value.dtype}, not {list(template.shape)} of {template.dtype}"
            )
        return value

    @torch.no_grad()
    def settle(self) -> None:
        """Must be called when all bytes have arrived."""
        if self._flags is None and not self._received:
            return
        flags = self.flags() if self._flags is None else self._flags
        for index, parameter in enumerate(self.parameters):
            if not flags[index]:
                self.optimizer.state.pop(parameter, None)
                continue
            for key, template in self._templates[index].items():
                row = self._received.get((index, key))
                if row is not None:
                    self._set(parameter, key, template, row.view(template.dtype).reshape(template.shape))
        self._flags, self._received = None, {}

    def _set(self, parameter: torch.Tensor, key: str, template: Template, value: torch.Tensor) -> None:
        kept = self.optimizer.state[parameter]
        if not template.is_tensor:
            kept[key] = value.item()
        elif isinstance(kept.get(key), torch.Tensor):
            local(kept[key]).copy_(value)
        else:
            kept[key] = template.made_of(value.to(template.device, memory_format=template.memory_format, copy=True))


class Template:
    """Type, shape and device of a part of an optimizer's state."""

    def __init__(self, name: str, value: Any):
        self.is_tensor = isinstance(value, torch.Tensor)
        if not self.is_tensor and not isinstance(value, (bool, int, float)):
            raise StateError(f"{name} is a {type(value).__name__}: only tensors and numbers can be kept")
        tensor: Any = value if self.is_tensor else torch.tensor(value, dtype=_dtype_of(value))
        self.part = part_of(name, tensor)
        # Mesh, placements, shape and strides of a sharded tensor.
        self._sharding: tuple[Any, ...] | None = None
        if is_sharded(tensor):
            self._sharding = (tensor.device_mesh, tensor.placements, tensor.shape, tensor.stride())
        tensor = local(tensor)
        self.shape, self.dtype, self.device = tensor.shape, tensor.dtype, tensor.device
        is_last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
        is_last = is_last and not tensor.is_contiguous()
        self.memory_format = torch.channels_last if is_last else torch.contiguous_format
        self.num_bytes = tensor.numel() * tensor.element_size()

    def made_of(self, part: torch.Tensor) -> torch.Tensor:
        """A tensor of this kind from this process' part."""
        if self._sharding is None:
            return part
        from torch.distributed.tensor import DTensor

        mesh, placements, shape, stride = self._sharding
        made: torch.Tensor = DTensor.from_local(part, mesh, placements, run_check=False, shape=shape, stride=stride)
        return made


def _dtype_of(value: Any) -> torch.dtype:
    if isinstance(value, bool):
        return torch.bool
    return torch.int64 if isinstance(value, int) else torch.float64


class Flags:
    """The view of the flags that show for which parameters the optimizer has state, or of one of
    them."""

    dtype = "U8"

    def __init__(self, owner: OptimizerState, index: int | None = None):
        self._owner = owner
        self._first = index or 0
        self.name = f"{owner.name}.initialized" if index is None else f"{owner.name}.initialized.{owner.labels[index]}"
        self.num_bytes = len(owner.parameters) if index is None else 1
        self.shape = [self.num_bytes]

    def read(self) -> torch.Tensor:
        return self._owner.flags()[self._first : self._first + self.num_bytes]

    def write(self, start: int, piece: torch.Tensor) -> None:
        self._owner.receive_flags(self._first + start, piece)


class Kept:
    """The view of a part of the optimizer's state for one parameter."""

    def __init__(self, owner: OptimizerState, index: int, key: str, template: Template, dtypes: dict[torch.dtype, str]):
        self._owner, self._index, self._key = owner, index, key
        self.name = f"{owner.name}.{key}.{owner.labels[index]}"
        if template.dtype not in dtypes:
            raise StateError(f"{self.name} has the type {template.dtype}, which no checkpoint can hold")
        self.dtype = dtypes[template.dtype]
        self.shape = list(template.shape)
        self.num_bytes = template.num_bytes
        self.part: Part = template.part

    def read(self) -> torch.Tensor:
        return bytes_of(self._owner.current(self._index, self._key))

    def write(self, start: int, piece: torch.Tensor) -> None:
        self._owner.receive(self._index, self._key, start, piece)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's elements in their logical order: the tensor's own memory if it is
    contiguous, else a copy."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _templates(
    name: str, optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor]
) -> list[dict[str, Template]]:
    """The parts of the optimizer's state for each parameter, in order."""
    _check_keys(name, optimizer, optimizer.state)
    # Also of frozen parameters, because they may be trained later.
    missing = {index: parameter for index, parameter in enumerate(parameters) if not optimizer.state.get(parameter)}
    portions = list(_portions(missing))
    try:
        try:
            learned = _learned(name, optimizer, portions)
        except Exception as error:
            if len(portions) < 2 or is_own(error):
                raise
            # The optimizer may need the gradients of all parameters in each step.
            learned = _learned(name, optimizer, [missing])
    except (TypeError, RuntimeError) as error:
        if is_own(error):
            raise
        raise StateError(
            f"{name} of rh.join(state=...) is a {type(optimizer).__name__}, which cannot make a step with gradients of zero "
            f"({error}): optimizers with closures or sparse gradients cannot be kept"
        ) from error
    return [
        learned[index] if index in learned else _templates_of(name, index, optimizer.state[parameter])
        for index, parameter in enumerate(parameters)
    ]


def _check_keys(name: str, optimizer: torch.optim.Optimizer, state: dict[Any, Any]) -> None:
    """Raises StateError if an optimizer has state that belongs to no parameter: checkpoints have no
    place for it."""
    parameters = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for key, kept in state.items():
        if kept and id(key) not in parameters:
            what = ", ".join(map(str, kept)) if isinstance(kept, dict) else "something"
            key = f"a tensor of {list(key.shape)}" if isinstance(key, torch.Tensor) else repr(key)
            raise StateError(
                f"{name} of rh.join(state=...), a {type(optimizer).__name__}, keeps {what} in its state under {key}, which is no "
                "parameter of it: checkpoints and new workers would not have that; keep it for a parameter, or in param_groups"
            )


def _portions(parameters: dict[int, torch.Tensor]) -> Iterator[dict[int, torch.Tensor]]:
    """Splits parameters into portions of limited size; a larger parameter is a portion of its
    own."""
    portion: dict[int, torch.Tensor] = {}
    num_bytes = 0
    for index, parameter in parameters.items():
        own = parameter.numel() * parameter.element_size()
        if portion and num_bytes + own > _PORTION:
            yield portion
            portion, num_bytes = {}, 0
        portion[index] = parameter
        num_bytes += own
    if portion:
        yield portion


def _learned(
    name: str, optimizer: torch.optim.Optimizer, portions: list[dict[int, torch.Tensor]]
) -> dict[int, dict[str, Template]]:
    learned = {}
    for portion in portions:
        made = _step_and_undo(optimizer, list(portion.values()))
        _check_keys(name, optimizer, made)
        for index, parameter in portion.items():
            learned[index] = _templates_of(name, index, made.get(parameter, {}))
    return learned


def _templates_of(name: str, index: int, kept: dict[str, Any]) -> dict[str, Template]:
    return {key: Template(f"{name}.{key}.{index}", value) for key, value in kept.items() if value is not None}


def _step_and_undo(optimizer: torch.optim.Optimizer, missing: list[torch.Tensor]) -> dict[Any, dict[str, Any]]:
    """Makes one step with gradients of zero and undoes it. Returns the state that the optimizer
    created."""
    before = {parameter: (parameter.grad, parameter.detach().clone()) for parameter in missing}
    others = [parameter for group in optimizer.param_groups for parameter in group["params"] if parameter not in before]
    gradients = {parameter: parameter.grad for parameter in others}
    known = {key for key, kept in optimizer.state.items() if kept}
    groups = [{key: copy.deepcopy(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    hooks = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    counted = getattr(optimizer, "_step_count", None), getattr(optimizer, "_opt_called", None)
    try:
        for parameter in others:
            parameter.grad = None
        for parameter in missing:
            parameter.grad = torch.zeros_like(parameter)
        # Bypass wrappers of schedulers, which count steps, and hooks of the user.
        step = type(optimizer).step
        with torch.no_grad():
            getattr(step, "__wrapped__", step)(optimizer)
    finally:
        with torch.no_grad():
            for parameter, (gradient, value) in before.items():
                parameter.copy_(value)
                parameter.grad = gradient
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
        for group, old in zip(optimizer.param_groups, groups):
            group.update(old)
        made = {key: optimizer.state.pop(key) for key in list(optimizer.state) if key not in known}
        optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks = hooks
        for attribute, count in zip(("_step_count", "_opt_called"), counted):
            if count is not None:
                setattr(optimizer, attribute, count)
    return made
