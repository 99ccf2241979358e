"""Gradients of the global batch: a model whose backward pass sums them over the ranks, with PyTorch's DDP.

An error of a collective does not reach the script. It is noted, the pass goes on with what there is, and ``job.commit``
drops the step: see :meth:`Gradients.broke`.
"""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel, distributed

from ._native import fault_point
from .errors import ConfigError, NotCommitted, is_own, words_of
from .traces import shortened

if TYPE_CHECKING:
    from .groups import Group
    from .sampler import Step


_SYNC = ("_verify_param_shape_across_processes", "_sync_module_states")


@contextlib.contextmanager
def _without_sync() -> Iterator[dict[str, Any]]:
    """Options for a DDP that neither compares nor sends the parameters: all ranks have the same state."""
    if "init_sync" in inspect.signature(DistributedDataParallel.__init__).parameters:
        yield {"init_sync": False}
        return
    # Before PyTorch 2.7 it has no such option.
    before = {name: getattr(distributed, name) for name in _SYNC}
    for name in _SYNC:
        setattr(distributed, name, lambda *_, **__: None)
    try:
        yield {}
    finally:
        for name, function in before.items():
            setattr(distributed, name, function)


class Gradients:
    """What the models of one job share in one step."""

    def __init__(self) -> None:
        self.group: Group | None = None
        self.step: Step | None = None
        # What the gradients of this rank are multiplied by before they are summed.
        self.weight = 1.0
        # Why a collective of this step has failed.
        self.broken: str | None = None
        # That error, if no peer is its cause.
        self.own_error: BaseException | None = None
        # When this rank had computed its own last gradients.
        self.computed_at = 0.0
        self.accumulates = False
        self.models: list[Model] = []
        # Of each DDP that has summed all of its gradients in this step: its parameters, by id. In a world of one, of each
        # model whose DDP would have: a mistake shows before a second worker joins.
        self.summed: set[frozenset[int]] = set()
        # What the DDPs have summed in this step, by address: it has to have the same bits on all ranks.
        self.buckets: dict[int, torch.Tensor] = {}
        # A DDP has summed gradients that contain sums.
        self.is_summed_twice = False
        # What no DDP sums, for each set of DDPs and optimizers. It is computed once: a model has many parameters.
        self._outside: dict[tuple[Any, ...], list[torch.Tensor]] = {}

    def begin(self, step: Step) -> None:
        """A step begins."""
        self.step = step
        self.broken = self.own_error = None
        self.computed_at = 0.0
        self.summed.clear()
        self.buckets.clear()
        self.is_summed_twice = False

    def unsummed(self, optimizers: Sequence[torch.optim.Optimizer]) -> list[torch.Tensor]:
        """Parameters of the optimizers whose gradients are those of this rank alone.

        Raises :class:`~roundhouse.errors.NotCommitted` when a DDP has summed only some of its gradients.
        """
        for model in self.models:
            model.check()
        sizes = ((id(one), *(len(group["params"]) for group in one.param_groups)) for one in optimizers)
        key = (frozenset(self.summed), *sizes)
        outside = self._outside.get(key)
        if outside is None:
            within = frozenset().union(*self.summed)
            parameters = [p for one in optimizers for group in one.param_groups for p in group["params"]]
            outside = self._outside[key] = [p for p in parameters if id(p) not in within]
        return [p for p in outside if p.grad is not None]

    def broke(self, error: BaseException) -> None:
        """A collective has failed: this step will be dropped."""
        if self.broken is None:
            self.broken = words_of(error)
            self.own_error = error if is_own(error) else None

    def reduce(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """DDP's hook: the sum over the ranks of a bucket of gradients."""
        buffer = bucket.buffer()
        if self.computed_at == 0.0 and self.step is not None:
            fault_point("Backward", self.step.rank, self.step.number)
        self.computed_at = time.perf_counter()
        if self.broken is None and self.group is not None:
            if self.weight == 0:
                buffer.zero_()  # A rank without samples: its gradients may be NaN.
            elif self.weight != 1.0:
                buffer.mul_(self.weight)
            try:
                work = self.group.process_group.allreduce([buffer])
                self.buckets[buffer.data_ptr()] = buffer
                if self.group.waits is not None:
                    return self.group.waits.future(work, buffer, self.broke)
                summed: torch.futures.Future[Any] = work.get_future()
                return summed.then(lambda future: self._summed(future, buffer))
            except RuntimeError as error:
                self.broke(error)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(buffer)
        return done

    def _summed(self, future: Any, buffer: torch.Tensor) -> torch.Tensor:
        try:
            future.value()
        except RuntimeError as error:
            self.broke(error)
        return buffer


class Model(torch.nn.Module):
    """A module that every generation wraps in a DDP of its own. Attributes are those of the module."""

    def __init__(self, module: torch.nn.Module, gradients: Gradients, options: dict[str, Any]):
        super().__init__()
        self.module = module
        self._gradients = gradients
        self._options = options
        self._ddp: list[DistributedDataParallel] = []  # Not a submodule: its parameters are the module's.
        # Of the DDP: which of the module's parameters it sums, and their ids.
        self._all = list(module.parameters())
        self._trained: list[bool] = []
        self._ids: frozenset[int] = frozenset()
        gradients.models.append(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._check_static()
        ddp = self._wrapped()
        if ddp is None:
            self._note_alone()
            return self.module(*args, **kwargs)
        # DDP would raise a RuntimeError, as for a lost peer.
        self.check()
        accumulates = self._gradients.accumulates
        if accumulates and torch.is_grad_enabled():
            self._gradients.summed.discard(self._ids)
        try:
            with ddp.no_sync() if accumulates else contextlib.nullcontext():
                return ddp(*args, **kwargs)
        except RuntimeError as error:
            if is_own(error):
                raise
            # Its second pass tells the ranks how gradients are packed, also in no_sync.
            words = words_of(error)
        # An error of the model comes again. Not in the handler: there `error` keeps what the first pass has computed.
        self.drop()
        result = self.module(*args, **kwargs)
        self._gradients.broken = self._gradients.broken or words
        return result

    def take(self, options: dict[str, Any]) -> None:
        """Options that ``job.model`` was given for the same module once more.

        Raises :class:`~roundhouse.errors.ConfigError` if they are others than before, or come after the first pass.
        """
        if not options or options == self._options:
            return
        # Also in a world of one, which has no DDP yet: a second worker would refuse them.
        if self._options or self._trained:
            raise ConfigError(
                f"job.model of the same {type(self.module).__name__} with other options than before: {options}, not {self._options}; "
                "give them in its first call, before the loop: later calls need none"
            )
        self._options = options

    def check(self) -> None:
        """Raises NotCommitted if a backward pass has left parameters out: DDP waits for all gradients of a bucket, and sums the
        buckets in order."""
        if not self._ddp or self._gradients.broken is not None:
            return
        try:
            self._ddp[0].reducer._check_reducer_finalized()
        except RuntimeError as error:
            parameters = self.module.named_parameters()
            missing = [name for name, parameter in parameters if parameter.requires_grad and parameter.grad is None]
            raise NotCommitted(
                f"the gradients of {type(self.module).__name__} were not summed over the ranks: the backward pass has left out "
                f"{shortened(missing) or 'some parameters'}; if that is intended, give job.model find_unused_parameters=True"
            ) from error

    def _check_static(self) -> None:
        """Raises ConfigError for a pass in ``no_sync`` with a static graph, also in a world of one: DDP would end the process with
        an assertion of its own, in the first pass of some generation."""
        if self._options.get("static_graph") and self._gradients.accumulates and self._trains() and torch.is_grad_enabled():
            raise ConfigError(
                f"a pass of {type(self.module).__name__} in no_sync with job.model(..., static_graph=True): a DDP with a static "
                "graph has to sum the gradients of its first pass, and each generation has a new DDP; leave out static_graph, or "
                "make one pass per step, without no_sync"
            )

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Passes within it add to the gradients and are not summed over the ranks: all of a step but the last one."""
        before, self._gradients.accumulates = self._gradients.accumulates, True
        try:
            yield
        finally:
            self._gradients.accumulates = before

    def _trains(self) -> bool:
        """In training mode. The module says it: a script may set the mode of the module that it has given, and not of this one."""
        return bool(getattr(self.module, "_orig_mod", self.module).training)

    def _wrapped(self) -> DistributedDataParallel | None:
        gradients = self._gradients
        if gradients.group is None or gradients.broken is not None or not self._trains():
            return None
        trained = [parameter.requires_grad for parameter in self._all]
        if not any(trained):
            return None  # Such as the other network of a GAN, whose DDP is used again later.
        if trained != self._trained:
            self.drop()
            self._train(trained)
        if not self._ddp:
            # Buffers go with the commit. The summed gradients stay where they were summed, and are not copied.
            options = {"gradient_as_bucket_view": True} | self._options
            with _without_sync() as without_sync:
                ddp = DistributedDataParallel(
                    self.module,
                    process_group=gradients.group.process_group,
                    broadcast_buffers=False,
                    **without_sync,
                    **options,
                )
            ddp.register_comm_hook(None, lambda _, bucket: self._reduce(bucket))
            self._ddp.append(ddp)
        return self._ddp[0]

    def _note_alone(self) -> None:
        """A pass in a world of one, whose gradients a DDP would sum if there were one."""
        gradients = self._gradients
        if gradients.group is not None or not (self._trains() and torch.is_grad_enabled()):
            return
        if gradients.accumulates:
            # As with a DDP: the last pass of a step has to be summed.
            gradients.summed.discard(self._ids)
            return
        trained = [parameter.requires_grad for parameter in self._all]
        if trained != self._trained:
            self._train(trained)
        if self._ids:
            gradients.summed.add(self._ids)

    def _train(self, trained: list[bool]) -> None:
        """Which parameters are trained has changed."""
        # What DDP leaves out, too.
        ignored = getattr(self.module, "_ddp_params_and_buffers_to_ignore", ())
        parameters = self.module.named_parameters()
        self._trained = trained
        self._ids = frozenset(id(p) for name, p in parameters if p.requires_grad and name not in ignored)

    def _reduce(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        if bucket.is_last():
            gradients = self._gradients
            gradients.is_summed_twice |= self._ids in gradients.summed
            gradients.summed.add(self._ids)
        return self._gradients.reduce(bucket)

    def drop(self) -> None:
        """The generation is over: nothing of its group is left on the gradients."""
        while self._ddp:
            ddp: Any = self._ddp.pop()
            ddp.reducer._remove_autograd_hooks()
            ddp.reducer = None
            ddp.logger = None
