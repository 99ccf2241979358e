"""What a Trainer writes of a model that the processes of a replica share: the files of the whole
model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ...errors import PeerLost
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

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        replica = current()
        if replica is not None and state_dict is None:
            if not self._writes(replica):
                return
            state_dict = whole_weights(self.model, replica)
        if replica is None or self.args.should_save:
            super()._save(output_dir, state_dict)

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
