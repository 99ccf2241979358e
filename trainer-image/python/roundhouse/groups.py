"""Process groups of PyTorch, as the native part asks for them.

A group of a generation is built in a thread that can be left behind, so nothing here touches PyTorch's default group
before :meth:`Group.become_default`.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

# Not later: its functions keep the default group of the moment at which it is imported, and DDP imports it.
import torch.distributed.nn.functional  # noqa: F401

from .connections import Connections, cut, open_sockets
from .waits import Apart, Bounded, Waits

if TYPE_CHECKING:
    from .network import Store

_NAME = "roundhouse"
# Seconds for the collectives of a group that is left.
_PATIENCE = 1.0
# The same for one that is aborted: its threads end at once, but for one that waits for the rest of a message.
_PATIENCE_WITH_ABORTED = 0.2
# Seconds between two looks at whether a collective waits beside a connection that a peer has ended, and how often in a row that
# is so before it has failed. The last collective of a group may end a moment after a peer has left.
_LOOK_INTERVAL = 0.05
_LOOKS_AT_ENDED = 20
# Of one generation, including those that the script makes: each has a name of its own, which is a number.
_MOST_GROUPS = 1 << 20
# What the next call of the creator hands to PyTorch.
_prepared: list[Any] = []
# The group that is PyTorch's default one.
_default: Group | None = None


def duration(seconds: float) -> datetime.timedelta:
    """As PyTorch wants it."""
    return datetime.timedelta(seconds=seconds)


def gloo(store: dist.Store, rank: int, size: int, seconds: float, address: str) -> Any:
    """Ranks that reach each other at addresses of their hosts."""
    kind: Any = dist.ProcessGroupGloo
    options = kind._Options()
    options._timeout = duration(seconds)
    # Without it Gloo would listen where the host's name leads.
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    return dist.ProcessGroupGloo(store, rank, size, options)


class Wires(NamedTuple):
    """How the ranks of a generation reach each other over Gloo."""

    own: Connections
    address: str
    peers: set[str]
    store_ports: set[int]


def nccl(store: dist.Store, rank: int, size: int, seconds: float) -> Any:
    """Ranks on GPUs."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = duration(seconds)
    # A communicator whose calls return at once, so that connecting has a timeout (TORCH_NCCL_NONBLOCKING_TIMEOUT).
    options.config.blocking = 0
    return dist.ProcessGroupNCCL(store, rank, size, options)


# Bytes of host memory that move: their address, their number, and the other rank.
Piece = tuple[int, int, int]


class Exchange(NamedTuple):
    """Bytes on their way between two ranks."""

    work: Any
    receive: Piece | None
    received: torch.Tensor
    # The device may still read from it.
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
        # Of its collectives, now.
        self._timeout = seconds
        self._wires = wires
        # Of groups that the script has made of some of its ranks: connections over Gloo, groups over NCCL.
        self._parts: list[Any] = []
        self._indices: dict[tuple[int, ...], torch.Tensor] = {}
        self._is_aborted = False
        # 1 from the begin of an abort on, in memory that the device reads: see StepNumbers.begin.
        self._abort_flag = torch.zeros(1, dtype=torch.float64, pin_memory=device.type == "cuda")
        self._is_over = threading.Event()
        # Over Gloo: NCCL's collectives make the device wait, and its abort ends them.
        self.waits = None if wires is None else Waits()
        if self.waits is not None and wires is not None:
            arguments = (self.waits, wires.own)
            threading.Thread(target=self._watch, args=arguments, name="watch", daemon=True).start()
        self.process_group: Any = None

    @property
    def reports_lost_peers(self) -> bool:
        """Whether a collective that fails returns an error on every rank. NCCL's hang until the group is aborted."""
        return self.device.type == "cpu"

    def begin_sum(self, values: list[float]) -> tuple[torch.Tensor, Any]:
        """Begins to sum numbers over the ranks, element by element; :meth:`end_sum` returns the sums."""
        tensor = self.uploaded(values)
        return tensor, self.backend.allreduce([tensor])

    def end_sum(self, begun: tuple[torch.Tensor, Any]) -> list[float]:
        """The sums, when all ranks have begun the same one."""
        tensor, work = begun
        self.bounded(work).wait()
        return tensor.tolist()

    def uploaded(self, values: list[float]) -> torch.Tensor:
        """Numbers on the device, without waiting for it."""
        is_cuda = self.device.type == "cuda"
        return torch.tensor(values, dtype=torch.float64, pin_memory=is_cuda).to(self.device, non_blocking=True)

    def abort_flag(self) -> torch.Tensor:
        """1 if an abort of this rank has begun when the device gets here, else 0; on the device."""
        return self._abort_flag.to(self.device, non_blocking=True, copy=True)

    def index_of(self, places: tuple[int, ...]) -> torch.Tensor:
        """Indices on the device; the same ones in each step."""
        if places not in self._indices:
            self._indices[places] = torch.tensor(places, device=self.device)
        return self._indices[places]

    def begin_broadcast(self, tensor: torch.Tensor, source: int) -> Any:
        """Begins to copy a tensor from rank ``source`` to all others; ``wait()`` of what it returns waits for it."""
        options = dist.BroadcastOptions()
        options.rootRank = source
        return self.bounded(self.backend.broadcast([tensor], options))

    def bounded(self, work: Any) -> Any:
        """A collective whose ``wait()`` ends when the group is aborted."""
        return work if self.waits is None else Bounded(self.waits, work)

    def begin_exchange(self, send: Piece | None, receive: Piece | None) -> Exchange:
        """Begins to send bytes of host memory to one rank, and to receive others from another one at the same time.

        :meth:`end_exchange` waits for both. The rest of the group takes no part.
        """
        sent = self._moved(send) if send else self._nothing()
        received = self._moved(receive) if receive else self._nothing()
        if self.waits is None:
            # Over NCCL what moves to and from a rank at once is one group of operations on the generation's communicator.
            self.backend._start_coalescing()
            try:
                self._begin_moves(send, receive, sent, received)
            except BaseException:
                # The error that came first says more.
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
        """Waits until the bytes have moved, and copies in those that were received."""
        exchange.work.wait()
        if exchange.receive:
            _host(exchange.receive).copy_(exchange.received)

    def _moved(self, piece: Piece) -> torch.Tensor:
        # A copy on CPUs, too: what is left behind when the group is aborted may still write to it.
        host = _host(piece)
        return host.clone() if self.device.type == "cpu" else host.to(self.device)

    def _nothing(self) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8, device=self.device)

    def set_timeout(self, seconds: float) -> None:
        """How long its collectives wait for their peers from now on."""
        self._timeout = seconds
        change = getattr(self.backend, "set_timeout", None) or getattr(self.backend, "_set_default_timeout", None)
        if change is not None:
            change(duration(seconds))

    def meet(self, place: str) -> bool:
        """Waits until all ranks are at a place, which has a name. False: they were not in the time of a collective.

        It is no collective. Gloo ends the process of a rank that is in one with others who are in another one.
        """
        ends_at = time.monotonic() + self._timeout
        here = self._store.add(place, 1)
        while here < self.size:
            if time.monotonic() > ends_at:
                return False
            time.sleep(0.01)
            here = self._store.add(place, 0)
        return True

    def part(self, store: dist.Store, rank: int, size: int, timeout: datetime.timedelta) -> Any:
        """A group of some of its ranks, for a script that calls ``torch.distributed.new_group``. It breaks with this one."""
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

    def abort(self) -> None:
        """Makes all collectives that wait end, and all later ones fail, also on other ranks."""
        self._is_aborted = True
        self._abort_flag.fill_(1.0)
        self._is_over.set()
        if self._wires is None:
            _abort(self.backend)
        else:
            self._wires.own.cut()
        if self.waits is not None:
            self.waits.abort()
        self._abort_parts()
        # A rank that makes a group of its script's waits at the store for all others, for 30 minutes.
        if self._store.socket is not None:
            cut(self._store.socket)

    def _abort_parts(self) -> None:
        for part in list(self._parts):
            if isinstance(part, Connections):
                part.cut()
            else:
                _abort(part)

    def has_failed(self) -> bool:
        """Whether NCCL has noted that a collective failed. That collective itself does not return. For Gloo see :meth:`_watch`."""
        # PyTorch 2.7 and newer.
        error = getattr(self.backend, "get_error", None)
        return error is not None and error().name != "SUCCESS"

    def _watch(self, waits: Waits, own: Connections) -> None:
        """Aborts the group when a collective waits over Gloo although a peer has ended its connection."""
        before, looks = 0, 0
        while not self._is_over.wait(_LOOK_INTERVAL):
            waiting = waits.oldest()
            # Connections of others say nothing of its peers.
            if waiting == 0 or len(own) + 1 != self.size or not own.is_one_ended():
                before = looks = 0
                continue
            looks = looks + 1 if waiting == before else 1
            before = waiting
            if looks >= _LOOKS_AT_ENDED:
                self.abort()

    def shutdown(self) -> None:
        """Ends it in order, when all ranks have left it."""
        if self._wires is None:
            shutdown = getattr(self.backend, "shutdown", None) or getattr(self.backend, "_shutdown", None)
            if shutdown is not None:
                shutdown()

    def close(self) -> None:
        """Lets it go, when nothing uses it any more: PyTorch has no default group from now on.

        Gloo's threads end here, unless the script has kept the group: one that still drops a callback when the interpreter
        ends would abort the process. They first wait for collectives of the script's own that a peer may never join, so after
        a second its connections are cut. NCCL's group is let go by :meth:`shutdown`: without that its peers would get garbage.
        """
        self._is_over.set()
        self._abort_parts()
        leave_default()
        self.process_group = None
        if self._wires is None:
            return
        held, self.backend = [self.backend], None
        ends = threading.Thread(target=held.clear, name="left", daemon=True)
        ends.start()
        ends.join(_PATIENCE_WITH_ABORTED if self._is_aborted else _PATIENCE)
        # Also if the script has kept it: its collectives would sum over the ranks of a generation that is over.
        self._wires.own.cut()
        if ends.is_alive() and not self._is_aborted:
            ends.join(_PATIENCE)
        for connections in [self._wires.own, *self._parts]:
            connections.close()
        self._parts.clear()

    def become_default(self) -> None:
        """Makes it PyTorch's default group: ``torch.distributed`` and DDP use it. In the main thread."""
        global _default
        _register()
        leave_default()
        _default = self
        _prepared.append(self.backend)
        # PyTorch counts from 0 again in each generation. By a number of an earlier one, which a DeviceMesh keeps, it would find a
        # group of other ranks.
        dist.distributed_c10d._world.group_count = self.generation * _MOST_GROUPS
        # PyTorch replaces it by one under which nothing is printed before it returns: ours ends the process.
        hook = sys.excepthook
        try:
            dist.init_process_group(
                # NCCL moves nothing of a CPU: without the type PyTorch would give it objects there, as for all_gather_object.
                _NAME if self.device.type == "cpu" else f"{self.device.type}:{_NAME}",
                store=self._store.store,
                rank=self.rank,
                world_size=self.size,
            )
        finally:
            sys.excepthook = hook
            # A group that the script makes later is another one.
            _prepared.clear()
        self.process_group = dist.group.WORLD


def _host(piece: Piece) -> torch.Tensor:
    address, length, _ = piece
    return torch.frombuffer((ctypes.c_uint8 * length).from_address(address), dtype=torch.uint8)


def leave_default() -> None:
    """PyTorch has no default group from now on."""
    global _default
    _default = None
    if dist.is_initialized():
        # It would shut them down. Over NCCL that is not due before all ranks have left: see Group.shutdown.
        dist.distributed_c10d._world.pg_names.clear()
        dist.destroy_process_group()


def _register() -> None:
    if _NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(_NAME, _create, devices=["cpu", "cuda"])


def _create(store: dist.Store, rank: int, size: int, timeout: datetime.timedelta) -> Any:
    """The group that is prepared; or another one, for a script that calls ``torch.distributed.new_group``."""
    if _prepared:
        return _prepared.pop()
    assert _default is not None
    return _default.part(store, rank, size, timeout)


def _abort(nccl: Any) -> None:
    abort = getattr(nccl, "abort", None) or getattr(nccl, "_abort", None)
    if abort is not None:
        abort()
