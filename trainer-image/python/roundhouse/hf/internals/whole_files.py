"""The files that a Trainer writes: after the training another rank writes them if rank 0 is lost,
and those of a model that the processes of a replica share are of the whole model."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ...errors import PeerLost
from ...integration.afterwards import Afterwards, write
from ...replica import Replica, current
from ..whole_tensors import whole_optimizer_state, whole_weights

if TYPE_CHECKING:
    from transformers import Trainer as Host
else:
    Host = object


class WholeFiles(Host):
    """A part of :class:`~roundhouse.hf.Elastic`. The processes of the replica of rank 0 gather the
    tensors, and rank 0 writes them."""

    optimizer: Any
    # The weights of the whole model while it is saved.
    _whole: dict[str, Any] | None = None
    # Known after the training of a worker, also to other Trainers of the script.
    _afterwards: Afterwards | None = None

    def save_model(self, output_dir: str | None = None, *args: Any, **kwargs: Any) -> None:
        """Writes the whole model on rank 0. All processes have to call it."""
        directory = output_dir or self.args.output_dir
        write(self._afterwards, directory, lambda: self._save_whole(output_dir, *args, **kwargs))

    def save_state(self) -> None:
        """Writes the state of the Trainer on rank 0."""
        write(self._afterwards, os.path.join(self.args.output_dir, "trainer_state.json"), super().save_state)

    def _save_whole(self, *args: Any, **kwargs: Any) -> None:
        replica = current()
        if replica is not None and self._writes(replica):
            self._whole = whole_weights(self.model, replica)
        try:
            super().save_model(*args, **kwargs)
        finally:
            self._whole = None

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        # Some versions call this on rank 0 alone.
        super()._save(output_dir, self._whole if state_dict is None else state_dict)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        replica, own = current(), self.optimizer
        if replica is not None:
            if not self._writes(replica):
                return
            state = whole_optimizer_state(own, replica)
            self.optimizer = SimpleNamespace(state_dict=lambda: state)
        try:
            super()._save_optimizer_and_scheduler(output_dir)
        finally:
            self.optimizer = own

    def _writes(self, replica: Replica) -> bool:
        """Whether a process of this replica writes files."""
        try:
            return not replica.all(not self.args.should_save)
        except PeerLost as lost:
            raise PeerLost(
                f"{lost}; or it has ended without this call: call trainer.save_model() in all processes, not on rank 0 alone, because each "
                "has a part of the weights"
            ) from lost
