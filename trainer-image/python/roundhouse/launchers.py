"""Hides LOCAL_RANK, which the agent sets, from accelerate, which would take it for that of a
launcher and make a process group."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_MODULE = "accelerate.state"


def hide_local_rank() -> None:
    """In a worker of a job, lets ``Accelerator()`` and ``TrainingArguments()`` of Hugging Face work
    as in a process that no launcher has started. The libraries may be imported before or later."""
    if not os.environ.get("ROUNDHOUSE_MEMBERSHIP_FILE"):
        return
    if _MODULE in sys.modules:
        _change(sys.modules[_MODULE])
    else:
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Changes the module of accelerate when the script imports it. This package does not import
    it."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                _change(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _change(module: ModuleType) -> None:
    state: Any = module.PartialState
    state.__init__ = _without_launcher(state.__init__)


def _without_launcher(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        local_rank = os.environ.pop("LOCAL_RANK", None)
        try:
            init(self, *args, **kwargs)
        finally:
            if local_rank is not None:
                os.environ["LOCAL_RANK"] = local_rank
        self.local_process_index = int(local_rank or 0)

    return begin
