"""What ``job.commit`` refuses: arguments and gradients with which a step would be wrong, or would
differ between ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .errors import ConfigError, NotCommitted
from .gradients import Gradients
from .replica import Replica
from .state import Row
from .traces import shortened
from .updates import is_unscaled


class CommitChecks:
    """The checks of a commit, which knows the state and the gradients of a job."""

    def __init__(self, row: Row, gradients: Gradients, replica: Replica | None, *, is_manual: bool):
        self._row = row
        self._gradients = gradients
        self._replica = replica
        self._is_manual = is_manual
        # The number of steps of each scheduler after the last commit, in the current generation.
        self._steps_of_schedulers: dict[int, int] = {}
        self._generation = -1

    def optimizers(self, given: Any, of_state: list[torch.optim.Optimizer]) -> list[torch.optim.Optimizer]:
        """The optimizers of a commit as a list. ``of_state``: those of the state, which are the
        default."""
        if given is None:
            if not of_state:
                raise ConfigError(
                    'job.commit without an optimizer, and none is in rh.join(state=...): add it, as in state={..., "opt": opt}; '
                    "a script that changes its tensors itself after the commit gives job.commit(loss, [])"
                )
            return of_state
        chosen = list(given) if isinstance(given, (list, tuple)) else [given]
        for one in chosen:
            if not hasattr(one, "param_groups"):
                raise ConfigError(f"job.commit(loss, optimizer, ...): the second argument has to be an optimizer, not a {type(one).__name__}")
            self.check_entry(one)
        return chosen

    def check_entry(self, entry: Any) -> None:
        """Raises :class:`~roundhouse.errors.ConfigError` for an object that is not in the state."""
        if entry is not None and not any(entry is own for own in self._row.entries.values()):
            name = type(entry).__name__
            raise ConfigError(
                f"job.commit got a new {name}, which is not in rh.join(state=...): new workers would begin with a fresh one; "
                f'add it, as in state={{..., "{name.lower()}": {name.lower()}}}'
            )

    def check_shared(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Raises :class:`~roundhouse.errors.ConfigError` for parameters of two optimizers."""
        seen: set[int] = set()
        for one in optimizers if len(optimizers) > 1 else ():
            parameters = {id(p): p for group in one.param_groups for p in group["params"] if p.requires_grad}
            shared = [p for key, p in parameters.items() if key in seen]
            if shared:
                raise ConfigError(
                    f"job.commit: {self.named(shared)} would be stepped by two optimizers in one step: give each parameter to "
                    "one of them, or give job.commit the optimizer of this step"
                )
            seen.update(parameters)

    def check_gradients(self, optimizers: Sequence[torch.optim.Optimizer], trained: Sequence[torch.Tensor]) -> None:
        """Raises :class:`~roundhouse.errors.NotCommitted` if no backward pass of a model of the job
        has computed gradients."""
        # Another stage of a pipeline may have all parameters that train.
        may_train_nothing = self._replica is not None and self._replica.num_data < self._replica.size
        is_frozen = may_train_nothing and not any(parameter.requires_grad for parameter in trained)
        if optimizers and not is_frozen and all(parameter.grad is None for parameter in trained):
            raise NotCommitted(
                "no parameter of the optimizer has a gradient: call loss.backward() before job.commit, the last time outside of "
                "no_sync(), and remove optimizer.zero_grad(), job.commit does it"
            )
        if optimizers and not self._gradients.models and not self._is_manual:
            raise NotCommitted(
                "the loss was computed without job.model(model), which sums the gradients as soon as there are two workers: use "
                'what it returns in place of the model; a script that sums them itself gives rh.join(gradients="manual")'
            )

    def check_summed(self, optimizers: Sequence[torch.optim.Optimizer], reduction: str) -> None:
        """Raises :class:`~roundhouse.errors.NotCommitted` unless each gradient was summed over the
        ranks once."""
        gradients = self._gradients
        if self._is_manual or gradients.broken is not None:
            return
        unsummed = gradients.unsummed(optimizers)
        if not gradients.summed:
            raise NotCommitted(
                "no gradients were summed over the ranks in this step: compute the loss with job.model(model), in training mode, "
                "and call loss.backward() before job.commit, the last time outside of no_sync(); a script that sums them itself "
                'gives rh.join(gradients="manual")'
            )
        if unsummed:
            raise NotCommitted(
                f"the gradients of {self.named(unsummed)} were not summed over the ranks in this step: compute the loss with "
                "job.model(...) of the modules that have them, in training mode, and the last pass of each outside of no_sync()"
            )
        if gradients.is_summed_twice and reduction == "sum":
            raise NotCommitted(
                "gradients were summed over the ranks twice in this step: put all passes but the last one into "
                "`with net.no_sync()`"
            )

    def check_schedulers(self, schedulers: Sequence[Any], generation: int) -> None:
        """Raises :class:`~roundhouse.errors.NotCommitted` if the script steps one of them
        itself."""
        if generation != self._generation:
            # This process may have received the state of another one.
            self._steps_of_schedulers.clear()
            self._generation = generation
        for one in schedulers:
            before = self._steps_of_schedulers.get(id(one))
            now = _steps_of(one)
            # A script may begin a schedule again.
            if before is not None and now is not None and now > before:
                raise NotCommitted(
                    f"{type(one).__name__}.step() outside of job.commit: job.commit steps the schedulers that it is given, and the learning "
                    "rate would move twice in a step; remove the call"
                )

    def note_stepped(self, schedulers: Sequence[Any]) -> None:
        """Notes that a commit has stepped the schedulers."""
        for one in schedulers:
            if (steps := _steps_of(one)) is not None:
                self._steps_of_schedulers[id(one)] = steps

    def check_unscaled(self, scaler: Any, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Raises :class:`~roundhouse.errors.ConfigError` if the gradients of a slice are not scaled
        any more."""
        if scaler is not None and any(is_unscaled(scaler, one) for one in optimizers):
            raise ConfigError(
                "scaler.unscale_ in a step with slices: the scale is removed from the sum of all slices; remove the call, and give "
                "job.commit max_grad_norm for clipping"
            )

    def named(self, parameters: Sequence[torch.Tensor]) -> str:
        """The names of parameters for a message."""
        return shortened(self._row.names_of(parameters)) or "parameters that are not in rh.join(state=...)"


def _steps_of(scheduler: Any) -> int | None:
    """How often a scheduler of PyTorch was stepped. None for others, which may not count."""
    steps = getattr(scheduler, "last_epoch", None)
    return steps if isinstance(steps, int) else None
