"""The state of a script as one row of bytes, which is sent to ranks that lack it and saved in
parts.

``rh.join(state={"model": model, "opt": opt})`` names the entries. Each entry becomes views of the
row, whose names, types and shapes never change:

* a module: a view for each tensor of its ``state_dict``, copied in place;
* an optimizer: a view for each tensor that it keeps for a parameter, in place, even if it does not
  exist yet; one for its ``param_groups``; and one for the flags that show for which parameters it
  keeps tensors;
* a tensor: itself;
* any other object with
  ``state_dict`` and ``load_state_dict``: one view of all its numbers, see :mod:`.packed`.
"""

from __future__ import annotations

import bisect
import ctypes
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

import torch

from .digests import sum_of_words
from .errors import StateError
from .local_parts import is_sharded, local, part_of
from .optimizer import OptimizerState, bytes_of
from .packed import Packed, tensors_of
from .parameters import check_freed, check_parameters, check_whole
from .replica import Replica
from .sharded import reshard
from .shared_views import SharedViews
from .staging import Staging

# The largest prime of 32 bits: no bit of a sum is lost.
_PRIME = 4_294_967_291
_DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}


class View(Protocol):
    """A part of the row."""

    name: str
    dtype: str
    shape: list[int]
    num_bytes: int

    def read(self) -> torch.Tensor:
        """All bytes of the view, on any device."""

    def write(self, start: int, piece: torch.Tensor) -> None:
        """Overwrites the bytes from offset ``start``."""


class InPlace:
    """The bytes of a tensor, or of this process' part of it, in the logical order of its elements.

    ``place``: the dict of the module that holds the tensor, if there is one, and its key. The
    module may assign another tensor there.
    """

    def __init__(self, name: str, tensor: torch.Tensor, place: tuple[dict[str, Any], str] | None = None):
        check_whole(name, tensor)
        if tensor.dtype not in _DTYPES:
            raise StateError(f"{name} of rh.join(state=...) has the type {tensor.dtype}, which no checkpoint can hold")
        self.name = name
        self._tensor = tensor
        # fully_shard puts whole tensors there between two passes, and keeps the sharded one.
        self._place = None if is_sharded(tensor) else place
        self.part = part_of(name, tensor)
        own = local(tensor)
        self.dtype = _DTYPES[own.dtype]
        self.shape = list(own.shape)
        self.num_bytes = own.numel() * own.element_size()

    @property
    def tensor(self) -> Any:
        """The current tensor."""
        return self._tensor if self._place is None else self._place[0].get(self._place[1])

    def _checked(self) -> torch.Tensor:
        tensor = local(self.tensor)
        if isinstance(tensor, torch.Tensor) and list(tensor.shape) == self.shape and _DTYPES.get(tensor.dtype) == self.dtype:
            return tensor
        if isinstance(tensor, torch.Tensor):
            now = f"{list(tensor.shape)} of {_DTYPES.get(tensor.dtype, tensor.dtype)}"
        else:
            now = f"a {type(tensor).__name__}"
        raise StateError(f"{self.name} has changed since rh.join: it is {now}, not {self.shape} of {self.dtype}")

    def read(self) -> torch.Tensor:
        return bytes_of(self._checked())

    @torch.no_grad()
    def write(self, start: int, piece: torch.Tensor) -> None:
        write_bytes(self._checked(), start, piece)


class Numbers:
    """The numbers of an object with a ``state_dict``, which is loaded when all of them have
    arrived."""

    def __init__(self, name: str, owner: Any):
        self.name = name
        self._owner = owner
        # Objects of PyTorch, and the groups of an optimizer, have their keys in the order of their
        # code.
        is_ordered = type(owner).__module__.partition(".")[0] in ("torch", __package__)
        self._packed = Packed(name, owner.state_dict(), is_ordered=is_ordered)
        self.dtype = "U8"
        self.num_bytes = self._packed.num_bytes
        self.shape = [self.num_bytes]
        self._received: bytearray | None = None

    def words(self) -> str:
        """The structure, which is the same on all ranks and in a checkpoint."""
        return self._packed.words()

    def tensors(self) -> list[torch.Tensor]:
        """The tensors among its numbers."""
        return tensors_of(self._owner.state_dict())

    def read(self) -> torch.Tensor:
        row = bytearray(self._packed.pack(self._owner.state_dict()))
        return torch.frombuffer(row, dtype=torch.uint8) if row else torch.empty(0, dtype=torch.uint8)

    def write(self, start: int, piece: torch.Tensor) -> None:
        if self._received is None:
            self._received = bytearray(self._packed.pack(self._owner.state_dict()))
        self._received[start : start + piece.numel()] = piece.numpy().tobytes()

    def settle(self) -> None:
        """Loads the received bytes."""
        if self._received is not None:
            row, self._received = bytes(self._received), None
            self._owner.load_state_dict(self._packed.unpack(row, self._owner.state_dict()))


class Extra:
    """The extra state of a module, as an object with a ``state_dict``."""

    def __init__(self, module: torch.nn.Module):
        self._module = module

    def state_dict(self) -> Any:
        return self._module.get_extra_state()

    def load_state_dict(self, loaded: Any) -> None:
        self._module.set_extra_state(loaded)


class ExtraTensor(Numbers):
    """A tensor that ``get_extra_state`` of a module returns; it is a new tensor each time."""

    def __init__(self, name: str, module: torch.nn.Module, tensor: torch.Tensor):
        super().__init__(name, Extra(module))
        if tensor.dtype in _DTYPES:
            self.dtype, self.shape = _DTYPES[tensor.dtype], list(tensor.shape)


def write_bytes(tensor: torch.Tensor, start: int, piece: torch.Tensor) -> None:
    """Overwrites the bytes of a tensor from offset ``start``."""
    whole = tensor.detach().contiguous()
    bytes_of(whole)[start : start + piece.numel()].copy_(piece)
    if whole.data_ptr() != tensor.data_ptr():
        # An expanded tensor stores its elements once; PyTorch refuses to write them several times.
        once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())
        tensor.detach()[once].copy_(whole[once])


class Row:
    """The concatenated views of all entries.

    ``replica``: the processes that have the state together. The row of each is then what it has of
    it, first the views that it writes to checkpoints.
    """

    def __init__(self, entries: dict[str, Any], replica: Replica | None = None):
        if not isinstance(entries, dict) or not entries:
            raise StateError('rh.join needs state={"model": model, "opt": optimizer, ...}: what is sent to new workers')
        self.entries = entries
        self._settled: list[Any] = []
        self.views: list[Any] = []
        owners: dict[str, str] = {}
        if replica is not None:
            # The script may have made a pass, such as an evaluation.
            reshard([entry for entry in entries.values() if isinstance(entry, torch.nn.Module)])
            check_freed(entries)
        names = None if replica is None else _names(entries)
        for name, entry in entries.items():
            views = self._views_of(name, entry, names)
            for view in views:
                _check_name(view.name, name, owners)
            self.views.extend(views)
        tensors = [view.tensor for view in self.views if isinstance(view, InPlace)]
        others = [view for view in self.views if isinstance(view, Numbers)]
        check_parameters(entries, tensors, lambda: [tensor for view in others for tensor in view.tensors()])
        self.shared_views = None if replica is None else SharedViews(replica, self.views)
        if self.shared_views is not None:
            self.views = self.shared_views.own
        self._is_settled = True
        # Set when a tensor is on a GPU.
        self.staging: Staging | None = None
        self._starts: list[int] = []
        end = 0
        for view in self.views:
            self._starts.append(end)
            end += view.num_bytes
        self.num_bytes = end

    def _views_of(self, name: str, entry: Any, names: dict[int, str] | None) -> list[Any]:
        if isinstance(entry, torch.nn.Module):
            # keep_vars returns the tensors themselves, not detached copies.
            tensors, again = entry.state_dict(keep_vars=True), entry.state_dict(keep_vars=True)
            return [_view_of(f"{name}.{key}", entry, key, value, again.get(key)) for key, value in tensors.items()]
        if isinstance(entry, torch.optim.Optimizer):
            optimizer = OptimizerState(name, entry, names)
            self._settled.append(optimizer)
            return [Numbers(f"{name}.param_groups", optimizer.groups), *optimizer.views(_DTYPES)]
        if isinstance(entry, torch.Tensor):
            return [InPlace(name, entry)]
        if hasattr(entry, "state_dict") and hasattr(entry, "load_state_dict"):
            return [Numbers(name, entry)]
        raise StateError(
            f"state[{name!r}] is a {type(entry).__name__}: give a module, an optimizer, a tensor, or something with "
            "state_dict() and load_state_dict()"
        )

    def described(self) -> list[tuple[str, str, list[int], int]]:
        """Name, type, shape and number of bytes of each view; in a replica of each view of its
        processes, with whole shapes."""
        if self.shared_views is not None:
            return self.shared_views.table
        return [(view.name, view.dtype, view.shape, view.num_bytes) for view in self.views]

    def shared(self) -> tuple[int, int, int, list[tuple[int, int, int, int, int, bool]]] | None:
        """The part of a process of a replica, as the native part takes it."""
        return None if self.shared_views is None else self.shared_views.described()

    def structures(self) -> dict[str, str]:
        """The structures of the entries that are kept as numbers, by name."""
        return {view.name: view.words() for view in self.views if isinstance(view, Numbers)}

    def names_of(self, tensors: Sequence[torch.Tensor]) -> list[str]:
        """The names of the tensors that are in the row."""
        wanted = {id(tensor) for tensor in tensors}
        return [view.name for view in self.views if isinstance(view, InPlace) and id(view.tensor) in wanted]

    def _pieces(self, start: int, end: int) -> list[tuple[Any, int, int]]:
        """The views in ``start..end`` of the row, each with its first and last byte."""
        pieces = []
        index = max(bisect.bisect_right(self._starts, start) - 1, 0)
        for view, first in zip(self.views[index:], self._starts[index:]):
            if first >= end:
                break
            low, high = max(start, first) - first, min(end, first + view.num_bytes) - first
            if low < high:
                pieces.append((view, low, high))
        return pieces

    def copy_out(self, start: int, end: int, address: int) -> None:
        """Copies bytes of the row to host memory."""
        self._check(start, end)
        # A rank that has read a checkpoint forwards it.
        self.settle()
        for view in self.views if start == 0 else []:
            if view.num_bytes == 0:
                view.read()  # The object may have new state, which would be lost.
        into = _memory(address, end - start)
        at = 0
        try:
            for view, low, high in self._pieces(start, end):
                self._copy(view.read()[low:high], into[at : at + high - low])
                at += high - low
        finally:
            # Also after an error, so that nothing writes to this memory later.
            if self.staging is not None:
                self.staging.flush()

    def _copy(self, row: torch.Tensor, into: torch.Tensor) -> None:
        if self.staging is None and row.is_cuda:
            self.staging = Staging(row.device)
        if self.staging is None:
            into.copy_(row)
        else:
            self.staging.copy(row, into)

    def copy_in(self, start: int, end: int, address: int) -> None:
        """Overwrites bytes of the row with those of host memory."""
        self._check(start, end)
        self._is_settled = False
        source = _memory(address, end - start)
        at = 0
        for view, low, high in self._pieces(start, end):
            view.write(low, source[at : at + high - low])
            at += high - low

    def digests(self) -> list[int]:
        """A 32-bit number for each view, which changes with each single bit of the view. On a GPU
        this waits once."""
        self.settle()
        sums = [sum_of_words(view.read()) for view in self.views]
        return [number % _PRIME for number in torch.stack([one.to(sums[0].device) for one in sums]).tolist()]

    def differs(self, where: str) -> NoReturn:
        """Must be called if the states of the ranks differ. ``where`` names the tensor and the
        ranks."""
        raise StateError(
            f"{where}; a script must not change its state by what only one rank knows, such as its own loss or the time; if it "
            "does not, a device computes wrong. The newest checkpoint is of an earlier step"
        )

    def settle(self) -> None:
        """Must be called when all bytes have arrived: loads the parts that are not copied in
        place."""
        if self._is_settled:
            return
        self._is_settled = True
        for view in self.views:
            if isinstance(view, Numbers):
                view.settle()
        for optimizer in self._settled:
            optimizer.settle()

    def _check(self, start: int, end: int) -> None:
        if not 0 <= start <= end <= self.num_bytes:
            raise StateError(f"bytes {start} to {end} of a state of {self.num_bytes} bytes")


def _names(entries: dict[str, Any]) -> dict[int, str]:
    """The names of parameters, and of tensors that are entries, by their ids."""
    names = {id(entry): name for name, entry in entries.items() if isinstance(entry, torch.Tensor)}
    for name, entry in entries.items():
        if isinstance(entry, torch.nn.Module):
            names |= {id(parameter): f"{name}.{key}" for key, parameter in entry.named_parameters()}
    return names


def _check_name(view: str, entry: str, owners: dict[str, str]) -> None:
    """Raises :class:`~roundhouse.errors.StateError` for a name that checkpoints cannot have or that
    is used already."""
    if view == "__metadata__":
        raise StateError(f"state[{entry!r}]: no tensor of a checkpoint can have that name; give the entry another name")
    if view in owners:
        raise StateError(
            f"state[{owners[view]!r}] and state[{entry!r}] both have a tensor that a checkpoint would name {view}: give one of them "
            "another name, without a dot, or leave out what is part of the other"
        )
    owners[view] = entry


def _view_of(name: str, module: torch.nn.Module, key: str, value: Any, again: Any) -> Any:
    """The view of an entry of a module's ``state_dict``. ``again``: the entry of a second call."""
    if not isinstance(value, torch.Tensor):
        raise StateError(f"{name} of rh.join(state=...) is a {type(value).__name__}, not a tensor")
    path, _, own = key.rpartition(".")
    if own == torch.nn.modules.module._EXTRA_STATE_KEY_SUFFIX:
        return ExtraTensor(name, module.get_submodule(path), value)
    place = _place_of(module, key, value)
    if place is None and value is not again and not _is_same_memory(value, again):
        raise StateError(
            f"{name} of rh.join(state=...) is a copy, which state_dict() of the {type(module).__name__} makes in each call: checkpoints "
            "and new workers would have that of rh.join; return the tensor itself, or keep it in get_extra_state() and "
            "set_extra_state()"
        )
    return InPlace(name, value, place)


def _is_same_memory(tensor: torch.Tensor, other: Any) -> bool:
    try:
        return isinstance(other, torch.Tensor) and tensor.data_ptr() == other.data_ptr()
    except RuntimeError:
        # The tensor has no memory and is refused for that.
        return True


def _place_of(module: torch.nn.Module, key: str, tensor: torch.Tensor) -> tuple[dict[str, Any], str] | None:
    """The dict and key by which the module holds a tensor of its ``state_dict``; None if they
    cannot be found."""
    path, _, own = key.rpartition(".")
    try:
        owner = module.get_submodule(path)
    except AttributeError:
        return None
    return next(((kept, own) for kept in (owner._buffers, owner._parameters) if kept.get(own) is tensor), None)


def _memory(address: int, length: int) -> torch.Tensor:
    if length == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer((ctypes.c_uint8 * length).from_address(address), dtype=torch.uint8)
