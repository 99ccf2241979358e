"""Process groups of PyTorch for the native part.

The group of a generation is created in a thread that may be abandoned, so nothing here changes
PyTorch's default group before :meth:`Group.become_default`.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

# Import this now: its functions keep the default group at the time of the import, and DDP imports
# it.
import torch.distributed.nn.functional  # noqa: F401

from .connections import Connections, cut, open_sockets
from .waits import Apart, Bounded, Waits

if TYPE_CHECKING:
    from .network import Store

_NAME = "roundhouse"
# Seconds that the collectives of a left group get to end.
_PATIENCE = 1.0
# Seconds for an aborted group: its threads end at once, except one that waits for the rest of a
# message.
_PATIENCE_WITH_ABORTED = 0.2
# Seconds between two checks whether a collective waits although a peer has closed its connection.
_LOOK_INTERVAL = 0.05
# Consecutive checks with this finding after which the collective counts as failed. One check is not
# enough, because the last collective of a group may end shortly after a peer has left.
_LOOKS_AT_ENDED = 10
# Largest number of groups per generation, including those that the script creates. A group's name
# is a number.
_MOST_GROUPS = 1 << 20
# The group that the next call of the creator passes to PyTorch.
_prepared: list[Any] = []
# The current default group of PyTorch.
_default: Group | None = None


def duration(seconds: float) -> datetime.timedelta:
    """A number of seconds as PyTorch's type."""
    return datetime.timedelta(seconds=seconds)


def gloo(store: dist.Store, rank: int, size: int, seconds: float, address: str) -> Any:
    """Creates a Gloo group of ranks that reach each other at the addresses of their hosts."""
    kind: Any = dist.ProcessGroupGloo
    options = kind._Options()
    options._timeout = duration(seconds)
    # Without a device Gloo would listen on the address of the host name.
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    return dist.ProcessGroupGloo(store, rank, size, options)


class Wires(NamedTuple):
    """Addresses and ports of a generation's ranks for Gloo."""

    own: Connections
    address: str
    peers: set[str]
    store_ports: set[int]


def nccl(store: dist.Store, rank: int, size: int, seconds: float) -> Any:
    """Creates an NCCL group of ranks on GPUs."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = duration(seconds)
    # A non-blocking communicator, so that connecting has a timeout
    # (TORCH_NCCL_NONBLOCKING_TIMEOUT).
    options.config.blocking = 0
    return dist.ProcessGroupNCCL(store, rank, size, options)


# Bytes of host memory to send or receive: address, number of bytes, and the other rank.
Piece = tuple[int, int, int]


class Exchange(NamedTuple):
    """A running transfer of bytes between ranks."""

    work: Any
    receive: Piece | None
    received: torch.Tensor
    # Keep the sent tensor alive: the device may still read from it.
    sent: torch.Tensor


class Group:
    """The ranks of one generation."""

    def __init__(
        self,
        backend: Any,
        store: Store,
        device: torch.device,
        place: tuple[int, int, int],
        seconds: float,
        wires: Wires | None,
    ):
        self.backend = backend
        self._store = store
        self.device = device
        self.generation, self.rank, self.size = place
        self._seconds = seconds
        # The current timeout of the collectives.
        self._timeout = seconds
        self._wires = wires
        # The group of the ranks with the same shard, one of each replica; None without others.
        self.column: Any = None
        self.is_of_replicas = False
        # Groups of some ranks that the script has created: connections over Gloo, groups over NCCL.
        self._parts: list[Any] = []
        self._indices: dict[tuple[int, ...], torch.Tensor] = {}
        self._is_aborted = False
        # 1 after the start of an abort, in memory that the device reads: see StepNumbers.begin.
        self._abort_flag = torch.zeros(1, dtype=torch.float64, pin_memory=device.type == "cuda")
        self._is_over = threading.Event()
        # Only for Gloo. With NCCL only the device waits, and NCCL's abort ends its collectives.
        self.waits = None if wires is None else Waits()
        if self.waits is not None and wires is not None:
            arguments = (self.waits, wires.own)
            threading.Thread(target=self._watch, args=arguments, name="watch", daemon=True).start()
        self.process_group: Any = None

    @property
    def reports_lost_peers(self) -> bool:
        """Whether a failed collective returns an error on every rank. NCCL's collectives hang until
        the group is aborted."""
        return self.device.type == "cpu"

    def begin_sum(self, values: list[float]) -> tuple[torch.Tensor, Any]:
        """Starts to sum numbers over the ranks, element by element; :meth:`end_sum` returns the
        sums."""
        tensor = self.uploaded(values)
        return tensor, self.backend.allreduce([tensor])

    def end_sum(self, begun: tuple[torch.Tensor, Any]) -> list[float]:
        """Waits until all ranks have started the same sum, and returns the sums."""
        tensor, work = begun
        self.bounded(work).wait()
        return tensor.tolist()

    def begin_vote(self, numbers: torch.Tensor) -> Any:
        """Starts to sum the numbers of a vote over the ranks, or with replicas over those with the
        same shard. Then the result is None if there is one replica."""
        backend = self.column if self.is_of_replicas else self.backend
        return None if backend is None else self.bounded(backend.allreduce([numbers]))

    def uploaded(self, values: list[float]) -> torch.Tensor:
        """Copies numbers to the device without waiting for it."""
        is_cuda = self.device.type == "cuda"
        return torch.tensor(values, dtype=torch.float64, pin_memory=is_cuda).to(self.device, non_blocking=True)

    def abort_flag(self) -> torch.Tensor:
        """A number on the device: 1 if an abort of this rank had begun when the device got here,
        else 0."""
        return self._abort_flag.to(self.device, non_blocking=True, copy=True)

    def index_of(self, places: tuple[int, ...]) -> torch.Tensor:
        """Indices on the device, which are the same in each step."""
        if places not in self._indices:
            self._indices[places] = torch.tensor(places, device=self.device)
        return self._indices[places]

    def begin_broadcast(self, tensor: torch.Tensor, source: int, backend: Any = None) -> Any:
        """Starts to copy a tensor from rank ``source`` to all others, of this group or of a part of
        it. Call ``wait()`` of the result."""
        options = dist.BroadcastOptions()
        options.rootRank = source
        return self.bounded((backend or self.backend).broadcast([tensor], options))

    def bounded(self, work: Any) -> Any:
        """Wraps a collective so that its ``wait()`` ends when the group is aborted."""
        return work if self.waits is None else Bounded(self.waits, work)

    def begin_exchange(self, send: Piece | None, receive: Piece | None) -> Exchange:
        """Starts to send bytes of host memory to one rank and to receive bytes from another rank at
        the same time.

        :meth:`end_exchange` waits for both. The rest of the group takes no part.
        """
        sent = self._moved(send) if send else self._nothing()
        received = self._moved(receive) if receive else self._nothing()
        if self.waits is None:
            # Over NCCL simultaneous transfers of a rank are one group of operations on the
            # generation's communicator.
            self.backend._start_coalescing()
            try:
                self._begin_moves(send, receive, sent, received)
            except BaseException:
                # Keep the first error, which explains the failure.
                with contextlib.suppress(RuntimeError):
                    self.backend._end_coalescing()
                raise
            return Exchange(self.backend._end_coalescing(), receive, received, sent)
        works = self._begin_moves(send, receive, sent, received)
        return Exchange(Apart(self.waits, works, (sent, received)), receive, received, sent)

    def _begin_moves(self, send: Piece | None, receive: Piece | None, sent: torch.Tensor, received: torch.Tensor) -> list[Any]:
        works = [self.backend.recv([received], receive[2], 0)] if receive else []
        return works + ([self.backend.send([sent], send[2], 0)] if send else [])

    def end_exchange(self, exchange: Exchange) -> None:
        """Waits until the transfers are complete, and copies the received bytes to their
        address."""
        exchange.work.wait()
        if exchange.receive:
            _host(exchange.receive).copy_(exchange.received)

    def _moved(self, piece: Piece) -> torch.Tensor:
        # Copy on CPUs, too: a transfer that an abort abandons may still write to the tensor.
        host = _host(piece)
        return host.clone() if self.device.type == "cpu" else host.to(self.device)

    def _nothing(self) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8, device=self.device)

    def set_timeout(self, seconds: float) -> None:
        """Sets how long later collectives wait for their peers."""
        self._timeout = seconds
        for backend in filter(None, (self.backend, self.column)):
            change = getattr(backend, "set_timeout", None) or getattr(backend, "_set_default_timeout", None)
            if change is not None:
                change(duration(seconds))

    def meet(self, place: str) -> bool:
        """Waits until all ranks are at the named place. Returns False if they are not within the
        timeout of a collective.

        This is not a collective: Gloo ends the process of a rank whose peers are in another
        collective.
        """
        ends_at = time.monotonic() + self._timeout
        here = self._store.add(place, 1)
        while here < self.size:
            if time.monotonic() > ends_at:
                return False
            time.sleep(0.01)
            here = self._store.add(place, 0)
        return True

    def gathers(self, place: str, seconds: float) -> bool:
        """Whether all ranks come to the named place within some seconds: the same answer on all
        ranks. Like :meth:`meet` this is not a collective, so some ranks may stay away. True also if
        the group is aborted: its collectives fail."""
        ends_at = time.monotonic() + seconds
        with self.waiting():
            try:
                here = self._store.add(place, 1)
                while here < self.size and not self._is_aborted:
                    if time.monotonic() > ends_at:
                        is_all = self._store.settled(f"{place} has", "some") == "all"
                        self._store.add(place, self.size)  # A rank that comes later does not wait.
                        return is_all
                    time.sleep(0.01)
                    here = self._store.add(place, 0)
                return self._is_aborted or self._store.settled(f"{place} has", "all") == "all"
            except RuntimeError:
                return self._is_aborted  # The store is gone with rank 0, or an abort has ended its connection.

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """This rank waits for the others in this context. If one of them is lost, the watch aborts
        the group."""
        waiting = None if self.waits is None else self.waits.begin(lambda: None)
        try:
            yield
        finally:
            if self.waits is not None and waiting is not None:
                self.waits.end(waiting)

    @property
    def is_aborted(self) -> bool:
        """Whether the group was aborted. Its collectives then fail."""
        return self._is_aborted

    def part(self, store: dist.Store, rank: int, size: int, timeout: datetime.timedelta) -> Any:
        """A group of some ranks, for a script that calls ``torch.distributed.new_group``. It fails
        together with this group."""
        seconds = min(timeout.total_seconds(), self._seconds)
        if self._wires is None:
            backend = nccl(store, rank, size, seconds)
            self._parts.append(backend)
        else:
            before = open_sockets()
            backend = gloo(store, rank, size, seconds, self._wires.address)
            self._parts.append(Connections(before, self._wires.peers, self._wires.store_ports))
        if self._is_aborted:
            self._abort_parts()
        return backend

    def divide(self, shard: int, num_shards: int) -> None:
        """Connects the ranks with the same shard, of replicas of ``num_shards`` consecutive ranks.
        PyTorch's default group is then that of the replica."""
        self.is_of_replicas = True
        if self.size > num_shards:
            store = dist.PrefixStore(f"column/{shard}", self._store.store)
            replica, num_replicas = self.rank // num_shards, self.size // num_shards
            self.column = self.part(store, replica, num_replicas, duration(self._seconds))

    def abort(self) -> None:
        """Ends all waiting collectives and makes all later ones fail, also on other ranks."""
        self._is_aborted = True
        self._abort_flag.fill_(1.0)
        self._is_over.set()
        if self._wires is None:
            abort(self.backend)
        else:
            self._wires.own.cut()
        if self.waits is not None:
            self.waits.abort()
        self._abort_parts()
        # A rank that creates a group for its script waits at the store for all others for up to 30
        # minutes.
        if self._store.socket is not None:
            cut(self._store.socket)

    def _abort_parts(self) -> None:
        for part in list(self._parts):
            if isinstance(part, Connections):
                part.cut()
            else:
                abort(part)

    def has_failed(self) -> bool:
        """Whether NCCL's watchdog has detected a failed collective, which itself does not return.
        For Gloo see :meth:`_watch`."""
        # PyTorch 2.7 and newer have this method.
        errors = [getattr(backend, "get_error", None) for backend in (self.backend, self.column)]
        return any(error is not None and error().name != "SUCCESS" for error in errors)

    def _watch(self, waits: Waits, own: Connections) -> None:
        """Aborts the group if a collective over Gloo waits although a peer has closed its
        connection."""
        before, looks = 0, 0
        while not self._is_over.wait(_LOOK_INTERVAL):
            waiting = waits.oldest()
            # Connections of other threads may be among them, so they show nothing about the peers.
            if waiting == 0 or len(own) + 1 != self.size or not own.is_one_ended():
                before = looks = 0
                continue
            looks = looks + 1 if waiting == before else 1
            before = waiting
            if looks >= _LOOKS_AT_ENDED:
                self.abort()

    def shutdown(self) -> None:
        """Ends the group in order, after all ranks have left it."""
        if self._wires is None:
            shutdown = getattr(self.backend, "shutdown", None) or getattr(self.backend, "_shutdown", None)
            if shutdown is not None:
                shutdown()

    def close(self) -> None:
        """Releases the group, when nothing uses it any more. PyTorch then has no default group.

        Gloo's threads end here, unless the script has kept the group. A thread that still drops a
        callback when the interpreter ends would abort the process. The threads first wait for
        collectives of the script, which a peer may never join, so the connections are closed after
        a second. :meth:`shutdown` releases an NCCL group: otherwise its peers would receive
        garbage.
        """
        self._is_over.set()
        self._abort_parts()
        if not self.is_of_replicas:
            leave_default()
        self.process_group = None
        if self._wires is None:
            return
        held, self.backend = [self.backend, self.column], None
        self.column = None
        ends = threading.Thread(target=held.clear, name="left", daemon=True)
        ends.start()
        ends.join(_PATIENCE_WITH_ABORTED if self._is_aborted else _PATIENCE)
        # Also if the script has kept the group: its collectives would sum over the ranks of an
        # ended generation.
        self._wires.own.cut()
        if ends.is_alive() and not self._is_aborted:
            ends.join(_PATIENCE)
        for connections in [self._wires.own, *self._parts]:
            connections.close()
        self._parts.clear()

    def become_default(self) -> None:
        """Makes this PyTorch's default group, which ``torch.distributed`` and DDP use. Call it in
        the main thread."""
        global _default
        _register()
        leave_default()
        _default = self
        _prepared.append(self.backend)
        # PyTorch counts groups from 0 in each generation. By the number of an earlier generation,
        # which a DeviceMesh keeps, it would find a group of other ranks.
        dist.distributed_c10d._world.group_count = self.generation * _MOST_GROUPS
        # PyTorch replaces the excepthook by one that prints nothing before it returns; ours ends
        # the process.
        hook = sys.excepthook
        try:
            dist.init_process_group(
                # NCCL cannot send CPU tensors. Without the type PyTorch would pass CPU objects to
                # it, such as in all_gather_object.
                _NAME if self.device.type == "cpu" else f"{self.device.type}:{_NAME}",
                store=self._store.store,
                rank=self.rank,
                world_size=self.size,
            )
        finally:
            sys.excepthook = hook
            # A group that the script creates later is another group.
            _prepared.clear()
        self.process_group = dist.group.WORLD


def _host(piece: Piece) -> torch.Tensor:
    address, length, _ = piece
    return torch.frombuffer((ctypes.c_uint8 * length).from_address(address), dtype=torch.uint8)


def leave_default() -> None:
    """Removes PyTorch's default group."""
    global _default
    _default = None
    if dist.is_initialized():
        # PyTorch would shut the groups down. Over NCCL this must wait until all ranks have left:
        # see Group.shutdown.
        dist.distributed_c10d._world.pg_names.clear()
        dist.destroy_process_group()


def _register() -> None:
    if _NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(_NAME, _create, devices=["cpu", "cuda"])


def _create(store: dist.Store, rank: int, size: int, timeout: datetime.timedelta) -> Any:
    """Returns the prepared group, or a new group for a script that calls
    ``torch.distributed.new_group``."""
    if _prepared:
        return _prepared.pop()
    assert _default is not None
    return _default.part(store, rank, size, timeout)


def abort(nccl: Any) -> None:
    """Ends the collectives of an NCCL group, whichever of its methods this PyTorch has."""
    end = getattr(nccl, "abort", None) or getattr(nccl, "_abort", None)
    if end is not None:
        end()
