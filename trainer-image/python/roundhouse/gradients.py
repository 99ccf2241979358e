"""Gradients of the global batch: a model whose backward pass sums gradients over the ranks with
PyTorch's DDP.

The script does not see an error of a collective. The package records it, the pass continues with
the values that it has, and ``job.commit`` drops the step: see :meth:`Gradients.broke`.
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
    """Options for a DDP that neither compares nor broadcasts the parameters, because all ranks have
    the same state, and does not broadcast buffers, because the commit does."""
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    # PyTorch 2.15 warns of the older name.
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    if "init_sync" in known:
        yield {"init_sync": False, buffers: False}
        return
    # DDP has no such option before PyTorch 2.7.
    before = {name: getattr(distributed, name) for name in _SYNC}
    for name in _SYNC:
        setattr(distributed, name, lambda *_, **__: None)
    try:
        yield {buffers: False}
    finally:
        for name, function in before.items():
            setattr(distributed, name, function)


class Gradients:
    """The state that the models of a job share in one step."""

    def __init__(self) -> None:
        self.group: Group | None = None
        self.step: Step | None = None
        # Factor of this rank's gradients before the sum.
        self.weight = 1.0
        # With replicas: the factor of all processes of this replica together.
        self.weight_of_replica = 1.0
        # The error message of a failed collective of this step.
        self.broken: str | None = None
        # That error, if the cause is not a lost peer.
        self.own_error: BaseException | None = None
        # When this rank computed its last own gradients.
        self.computed_at = 0.0
        self.accumulates = False
        # Whether the step is divided into slices, whose gradients no DDP sums.
        self.is_sliced = False
        self.models: list[Any] = []
        # Ids of the parameters of each DDP that has summed all its gradients in this step. With one
        # process: of each model whose DDP would have done so, so that mistakes show before a second
        # worker joins.
        self.summed: set[frozenset[int]] = set()
        # The tensors that DDPs have summed in this step, by address. Their bits must be the same on
        # all ranks.
        self.buckets: dict[int, torch.Tensor] = {}
        # Whether a DDP has summed gradients that already contain sums.
        self.is_summed_twice = False
        # Parameters that no DDP sums, for each set of DDPs and optimizers. Cached, because models
        # have many parameters.
        self._outside: dict[tuple[Any, ...], list[torch.Tensor]] = {}

    def begin(self, step: Step) -> None:
        """Begins a step."""
        self.step = step
        self.broken = self.own_error = None
        self.computed_at = 0.0
        self.summed.clear()
        self.buckets.clear()
        self.is_summed_twice = False

    def unsummed(self, optimizers: Sequence[torch.optim.Optimizer]) -> list[torch.Tensor]:
        """Parameters of the optimizers whose gradients were not summed over the ranks.

        Raises :class:`~roundhouse.errors.NotCommitted` if a DDP has summed only some of its
        gradients.
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
        """Records that a collective has failed, so that this step is dropped."""
        if self.broken is None:
            self.broken = words_of(error)
            self.own_error = error if is_own(error) else None

    def reduce(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """The hook for DDP: sums a bucket of gradients over the ranks."""
        buffer = bucket.buffer()
        if self.computed_at == 0.0 and self.step is not None:
            fault_point("Backward", self.step.rank, self.step.number)
        self.computed_at = time.perf_counter()
        if self.broken is None and self.group is not None:
            if self.weight == 0:
                buffer.zero_()  # The gradients of a rank without samples may be NaN.
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
    """A module that every generation wraps in a new DDP. Its attributes are those of the module."""

    def __init__(self, module: torch.nn.Module, gradients: Gradients, options: dict[str, Any]):
        super().__init__()
        self.module = module
        self._gradients = gradients
        self._options = options
        self._ddp: list[DistributedDataParallel] = []  # A list, so that DDP is not a submodule: it has the module's parameters.
        # The parameters of the module that the DDP sums, and their ids.
        self._all = list(module.parameters())
        self._trained: list[bool] = []
        self._ids: frozenset[int] = frozenset()
        gradients.models.append(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._check_static()
        self._check_slices()
        ddp = self._wrapped()
        if ddp is None:
            self._note_alone()
            return self.module(*args, **kwargs)
        # DDP would raise a RuntimeError, which looks like a lost peer.
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
            # DDP's second pass exchanges the packing of gradients, also in no_sync.
            words = words_of(error)
        # An error of the model repeats. Run this outside of the handler, where `error` would keep
        # the tensors of the first pass alive.
        self.drop()
        result = self.module(*args, **kwargs)
        self._gradients.broken = self._gradients.broken or words
        return result

    def take(self, options: dict[str, Any]) -> None:
        """Checks the options of a further call of ``job.model`` for the same module.

        Raises :class:`~roundhouse.errors.ConfigError` if they differ from the earlier options, or
        come after the first pass.
        """
        if not options or options == self._options:
            return
        # Check this also with one process, which has no DDP yet: with a second worker the options
        # would be refused.
        if self._options or self._trained:
            raise ConfigError(
                f"job.model of the same {type(self.module).__name__} with other options than before: {options}, not {self._options}; "
                "give them in its first call, before the loop: later calls need none"
            )
        self._options = options

    def check(self) -> None:
        """Raises NotCommitted if a backward pass has left out parameters. DDP waits for all
        gradients of a bucket and sums the buckets in order."""
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
        """Raises ConfigError for a pass in ``no_sync`` with a static graph, also with one process.
        DDP would end the process with an assertion in the first pass of some generation."""
        if self._options.get("static_graph") and self._gradients.accumulates and self._trains() and torch.is_grad_enabled():
            raise ConfigError(
                f"a pass of {type(self.module).__name__} in no_sync with job.model(..., static_graph=True): a DDP with a static "
                "graph has to sum the gradients of its first pass, and each generation has a new DDP; leave out static_graph, or "
                "make one pass per step, without no_sync"
            )

    def _check_slices(self) -> None:
        """Raises ConfigError for options of DDP, which is not used with slices."""
        if self._options and self._gradients.is_sliced:
            raise ConfigError(
                f"job.model(..., {', '.join(self._options)}) with job.sampler(..., slices=...): these are options of DDP, and the job "
                "sums the gradients of slices without it, also those of layers that a pass leaves out; leave the options out"
            )

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Passes within this context accumulate gradients without summing them over the ranks. Use
        it for all passes of a step except the last one."""
        before, self._gradients.accumulates = self._gradients.accumulates, True
        try:
            yield
        finally:
            self._gradients.accumulates = before

    def _trains(self) -> bool:
        """Whether the module is in training mode. Checks the user's module, because a script may
        set the mode of that module and not of this wrapper."""
        return bool(getattr(self.module, "_orig_mod", self.module).training)

    def _wrapped(self) -> DistributedDataParallel | None:
        gradients = self._gradients
        if gradients.group is None or gradients.is_sliced or gradients.broken is not None or not self._trains():
            return None
        trained = [parameter.requires_grad for parameter in self._all]
        if not any(trained):
            return None  # For example the other network of a GAN, whose DDP is used again later.
        if trained != self._trained:
            self.drop()
            self._train(trained)
        if not self._ddp:
            # Gradients are views of the buckets, so they are not copied.
            options = {"gradient_as_bucket_view": True} | self._options
            with _without_sync() as without_sync:
                ddp = DistributedDataParallel(
                    self.module,
                    process_group=gradients.group.process_group,
                    **without_sync,
                    **options,
                )
            ddp.register_comm_hook(None, lambda _, bucket: self._reduce(bucket))
            self._ddp.append(ddp)
        return self._ddp[0]

    def _note_alone(self) -> None:
        """Records a pass whose gradients a DDP would sum: of a process alone, or of a slice."""
        gradients = self._gradients
        if gradients.group is not None and not gradients.is_sliced or not (self._trains() and torch.is_grad_enabled()):
            return
        if gradients.accumulates:
            # As with a DDP, the last pass of a step must be summed.
            gradients.summed.discard(self._ids)
            return
        trained = [parameter.requires_grad for parameter in self._all]
        if trained != self._trained:
            self._train(trained)
        if self._ids:
            gradients.summed.add(self._ids)

    def _train(self, trained: list[bool]) -> None:
        """Must be called when the set of trained parameters has changed."""
        # DDP leaves out the same parameters.
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
        """Must be called when the generation has ended. Removes the hooks of its group from the
        gradients."""
        while self._ddp:
            ddp: Any = self._ddp.pop()
            ddp.reducer._remove_autograd_hooks()
            ddp.reducer = None
            ddp.logger = None
