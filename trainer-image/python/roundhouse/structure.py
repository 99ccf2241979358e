"""Checks that the modules and optimizers of the state still have the parameters of ``rh.join``."""

from __future__ import annotations

from typing import Any

import torch

from .errors import StateError


class Structure:
    """The parameters of the state at ``rh.join``. Each step compares them, which takes some
    microseconds."""

    def __init__(self, entries: dict[str, Any]):
        self._remember(entries)

    def _remember(self, entries: dict[str, Any]) -> None:
        self._modules = {name: entry for name, entry in entries.items() if isinstance(entry, torch.nn.Module)}
        self._optimizers = {name: entry for name, entry in entries.items() if isinstance(entry, torch.optim.Optimizer)}
        self._named = {name: dict(module.named_parameters()) for name, module in self._modules.items()}
        # The dicts in which a module holds its modules and parameters: new objects have another
        # identity.
        owners = dict.fromkeys(owner for module in self._modules.values() for owner in module.modules())
        self._kept = [
            (kept, list(map(id, kept.values()))) for owner in owners for kept in (owner._modules, owner._parameters)
        ]
        self._buffers = [(owner, _present(owner)) for owner in owners]
        self._trained = {name: _ids(optimizer) for name, optimizer in self._optimizers.items()}

    def check(self) -> None:
        """Raises :class:`~roundhouse.errors.StateError` that names the parameters that were
        replaced."""
        if any(list(map(id, kept.values())) != ids for kept, ids in self._kept):
            self._check_modules()
        if any(_present(owner) != names for owner, names in self._buffers):
            self._check_buffers()
        for name, optimizer in self._optimizers.items():
            if _ids(optimizer) != self._trained[name]:
                raise StateError(
                    f"{name} of rh.join(state=...) has other parameters or groups than at rh.join, so new workers and checkpoints "
                    "would not have what it keeps for them: give the optimizer all its parameters before rh.join; those that are "
                    "trained later may be frozen until then"
                )

    def _check_modules(self) -> None:
        for name, module in self._modules.items():
            before, now = self._named[name], dict(module.named_parameters())
            for key in [*before, *now]:
                if before.get(key) is not now.get(key):
                    what = "is gone since" if key not in now else "is another tensor than at" if key in before else "was not there at"
                    raise StateError(
                        f"{name}.{key} {what} rh.join: new workers, checkpoints and the optimizer would not have it; build the "
                        "model before rh.join, and before its optimizer"
                    )
        # Otherwise the same parameters are in another order, or a module has no parameters.
        self._remember({**self._modules, **self._optimizers})


    def _check_buffers(self) -> None:
        before = {id(owner): names for owner, names in self._buffers}
        for name, module in self._modules.items():
            for path, owner in module.named_modules():
                for key in _present(owner):
                    if key not in before[id(owner)] and key not in owner._non_persistent_buffers_set:
                        raise StateError(
                            f"{'.'.join(filter(None, (name, path, key)))}, a buffer, was not there at rh.join: new workers and checkpoints "
                            "would not have it; give it its shape before rh.join, or register it with persistent=False"
                        )
        self._buffers = [(owner, _present(owner)) for owner, _ in self._buffers]


def _present(module: torch.nn.Module) -> list[str]:
    """The keys of a module's buffers."""
    return [key for key, buffer in module._buffers.items() if buffer is not None]


def _ids(optimizer: torch.optim.Optimizer) -> list[list[int]]:
    return [list(map(id, group["params"])) for group in optimizer.param_groups]
