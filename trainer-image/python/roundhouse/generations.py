"""The generations of a process: its place in each, the group of the ranks, and the objects that use
this group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ._native import Process
from .errors import LOST_IN_REPLICA, ConfigError, PeerLost, RoundhouseError, words_of
from .failures import Failures
from .gradients import Gradients, Model
from .groups import Group, leave_default
from .network import Network
from .replica import Replica
from .sampler import Sampler, Step
from .sharded import ShardedModel, kind_of, reshard
from .state import Row


class Place(NamedTuple):
    """The place of a process in its generation, and its progress."""

    generation: int = 0
    rank: int = 0
    world_size: int = 1
    # Committed steps and samples.
    steps: int = 0
    samples: int = 0


class Generations:
    """The generations of one process."""

    def __init__(self, process: Process, row: Row, device: torch.device, replica: Replica | None = None):
        self.place = Place()
        # The processes with which this one shares the state.
        self.replica = replica
        # Committed steps. Between a commit and the next step this is one step ahead of the place.
        self.steps_done = 0
        self.group: Group | None = None
        self.gradients = Gradients()
        # Callbacks that run in each generation before its first step.
        self.callbacks: list[Callable[[], None]] = []
        self.sampler: Sampler | None = None
        self._process = process
        self._row = row
        self.device = device
        self._network: Network | None = None
        self._models: dict[int, Model | ShardedModel] = {}
        self._failures = Failures()

    def model(self, module: torch.nn.Module, options: dict[str, Any]) -> Model | ShardedModel:
        """A wrapper of the module that sums gradients over the ranks of each generation; the same
        module gives the same object."""
        known = self._models.get(id(module))
        if known is None and self.replica is not None:
            known = ShardedModel(module, self.gradients, self.replica)
        elif known is None:
            known = Model(module, self.gradients, options)
        self._models[id(module)] = known
        known.take(options)
        return known

    def prepare(
        self, sampler: Sampler, modules: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        """Enters the lobby on the first call. There is only one sampler."""
        if self.sampler is not None:
            if self.sampler is not sampler:
                raise ConfigError("job.steps with a second sampler: a job has one; make it longer instead")
            return
        self.sampler = sampler
        self.gradients.is_sliced = sampler.slices is not None
        if self.replica is not None:
            sampler.num_parts = self.replica.num_data
        if self._process.has_agent:
            # The first DDP of a process imports this module, which takes seconds. In the lobby no
            # rank waits for it.
            import torch._dynamo.utils  # noqa: F401
        tensors = [f"{name} {shape} of {dtype}" for name, dtype, shape, _ in self._row.described()]
        identity = _identity(sampler, self._row)
        if self.replica is not None:
            identity["processes of a replica"] = self.replica.size
            identity["parts of a replica's samples"] = self.replica.num_data
        self._network = Network(self.device, identity, tensors, self.replica)
        state = self._row.entries
        settings = {f"state.{name}": kind_of(entry) for name, entry in state.items()}
        settings |= {f"structure of {name}": words for name, words in self._row.structures().items()}
        settings["reduction"] = sampler.reduction
        if sampler.in_order:
            settings["in_order"] = "true"
        if sampler.drop_last:
            settings["drop_last"] = "true"
        if sampler.slices is not None:
            settings["slices"] = str(sampler.slices)
        self._process.prepare(
            schedule=sampler.schedule,
            model=" ".join(map(kind_of, modules)),
            optimizer=" ".join(type(optimizer).__name__ for optimizer in optimizers),
            settings=settings,
            network=self._network,
            row=self._row,
            views=self._row.described(),
            shared=self._row.shared(),
            generations=self,
        )

    def advance(self) -> bool:
        """Forms generations until a step is due. Returns False when all steps are committed."""
        while True:
            has_ended = self._process.end_body()
            if has_ended is not None:
                self.confirm(has_ended)
            try:
                is_due = self._process.advance()
            except RoundhouseError as error:
                mismatch = None if self._network is None else self._network.mismatch
                raise mismatch or error from None
            try:
                self._enter()
            except (RuntimeError, PeerLost) as error:
                if not self._callback_failed(error):
                    raise
                continue
            self._failures.formed()
            return is_due

    def _callback_failed(self, error: BaseException) -> bool:
        """Must be called when a collective of the script may have failed in a callback. Returns
        whether the next generation repeats the callback."""
        if isinstance(error, PeerLost):
            # job.sum has lost the generation. A process that a newer generation has superseded
            # ends.
            return error.newer is None
        # With replicas PyTorch's default group is that of this replica.
        if self.replica is not None or self.group is None or self.is_of_script(error, is_open=None):
            return False
        self._process.lose(words_of(error))
        self.leave()
        return True

    def is_of_script(self, error: BaseException, *, is_open: bool | None) -> bool:
        """Must be called when a collective of the script has failed. Returns whether the next
        generation would fail, too.

        ``is_open``: True in a step, False after its commit, None in a callback.
        """
        return self._failures.is_of_script(error, self.steps_done, is_open)

    def check_drop(self, step: Step, gradients: Gradients) -> None:
        """Must be called when a step is dropped. Raises an error that a lost peer does not
        explain."""
        self._failures.check_drop(step.number, gradients)

    def next_step(self) -> Step:
        """The next step, with this rank's samples."""
        assert self.sampler is not None
        place = self.place
        step = self.sampler.plan(place.steps, place.samples, (place.generation, *self.data_place))
        assert step is not None
        return step

    @property
    def data_place(self) -> tuple[int, int]:
        """Which part of a step's samples this process computes, and the number of parts: its rank
        and the world size, unless processes of a replica compute the same samples."""
        place, replica = self.place, self.replica
        if replica is None:
            return place.rank, place.world_size
        num_replicas = max(place.world_size // replica.size, 1)
        return place.rank // replica.size * replica.num_data + replica.data_index, num_replicas * replica.num_data

    def sizes_of_replica(self, step: Step) -> list[int]:
        """The numbers of samples of the processes of this replica that have different ones; without
        a replica that of this process."""
        if self.replica is None or self.sampler is None:
            return [step.size]
        ranks, schedule = self.replica.data_ranks(step.rank), self.sampler.schedule
        parts = [schedule.part(0, step.global_size, rank, step.world_size) for rank in ranks]
        return [end - start for start, end in parts]

    def confirm(self, holds: bool) -> bool:
        """Whether the outcome of a collective holds in all processes of the replica. It can succeed
        in one and fail in another, and they have to go the same way."""
        if self.replica is None:
            return holds
        if self.replica.all(holds):
            return True
        if holds:
            self._process.lose(LOST_IN_REPLICA)
        return False

    def formed(self, generation: int, has_formed: bool) -> bool:
        """Whether a generation has formed in all processes of the replica. The native part calls
        this after each attempt, which may succeed in one process and fail in another."""
        return has_formed if self.replica is None else self.replica.decide(f"formed/{generation}", has_formed)

    def check_replica(self) -> None:
        """Raises :class:`~roundhouse.errors.PeerLost` if a process of the replica has ended. The
        native part calls this while it waits for a generation."""
        if self.replica is not None:
            self.replica.check_alive()

    def cut_replica(self) -> None:
        """Ends the waits for the other processes of the replica. The native part calls this in
        another thread, once the agent says that the replica is lost."""
        if self.replica is not None:
            self.replica.cut()

    def meet_at_end(self) -> None:
        """Waits for all ranks after they have left the loop before the last step.

        Raises :class:`~roundhouse.errors.PeerLost` if a rank is still in the loop.
        """
        if self.group is None:
            return
        try:
            if self.group.meet(f"left after {self.steps_done}"):
                return
        except RuntimeError as error:
            # The wait failed, so a rank is lost.
            self._process.lose(words_of(error))
            self.leave()
            return
        self._process.lose("a rank is still in the loop")
        self.leave()
        raise PeerLost(
            f"this rank has left the loop after step {self.steps_done}, and another one has not: all ranks must leave "
            "the loop after the same step"
        )

    @property
    def is_between_generations(self) -> bool:
        """Whether the generation has ended and the next one has not formed yet."""
        return self.group is None and self.place.world_size > 1

    def leave(self) -> None:
        """Must be called when the generation has ended. Drops all uses of its group."""
        for model in self._models.values():
            model.drop()
        self.gradients.group = None
        if self.group is not None:
            self.group.close()
            self.group = None

    def end(self) -> None:
        """Must be called when the membership is over, before Python ends."""
        if self._network is not None:
            self._network.end()

    def rest(self) -> None:
        """Must be called after the training. Until the next generation forms, each rank does alone
        what the script does, and PyTorch has no default group."""
        for model in self._models.values():
            model.drop()
        self.gradients.group = None
        if self.replica is None:
            leave_default()

    def _enter(self) -> None:
        before = self.place.generation
        self.place = Place(*self._process.place())
        self.steps_done = self.place.steps
        if self.place.generation == before:
            return
        self.group = self._process.group()
        if self.replica is not None:
            # The state may have been replaced, and FSDP2 may keep whole parameters of an earlier
            # pass.
            reshard([entry for entry in self._row.entries.values() if isinstance(entry, torch.nn.Module)])
        if self.group is not None and self.replica is None:
            self.group.become_default()
        self.gradients.group = self.group
        for callback in self.callbacks:
            callback()


def _identity(sampler: Sampler, row: Row) -> dict[str, Any]:
    """The properties that must be equal on all ranks."""
    return {
        "samples of the data set": sampler.num_samples,
        "samples per step": sampler.global_batch_size,
        "seed": sampler.seed,
        "reduction": sampler.reduction,
        "slices": sampler.slices,
        "order of the samples": "as in the data set" if sampler.in_order else "permuted",
        "end of an epoch": "the last whole batch" if sampler.drop_last else "the last sample",
        "entries of state": [f"{name}: {kind_of(entry)}" for name, entry in row.entries.items()],
        **{f"structure of {name}": words.split("; ") for name, words in row.structures().items()},
    }
