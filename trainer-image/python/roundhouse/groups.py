"""Stores and process groups of PyTorch, as the native part asks for them.

A group of a generation is built in a thread that can be left behind, so nothing here touches PyTorch's default group
before :meth:`Group.become_default`.
"""

from __future__ import annotations

import ctypes
import datetime
import hashlib
import json
import socket
import sys
import threading
import time
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

# Not later: its functions keep the default group of the moment at which it is imported, and DDP imports it.
import torch.distributed.nn.functional  # noqa: F401

from .connections import Connections, cut, opened_to, open_sockets
from .errors import DataMismatch, RoundhouseError, StateError

_NAME = "roundhouse"
# Before PyTorch 2.8 (pytorch/pytorch#150215) a store on libuv cannot take a socket over.
_HAS_LISTENING_LIBUV = torch.__version__ >= "2.8"
# Seconds for the collectives of a group that is left.
_PATIENCE = 1.0
# What the next call of the creator hands to PyTorch.
_prepared: list[Any] = []
# The group that is PyTorch's default one.
_default: Group | None = None


def _seconds(seconds: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=seconds)


class Store:
    """A connection to a key-value store, or to the part of its keys that begin with a prefix."""

    def __init__(self, root: dist.Store, port: int, prefix: str = "", socket: int | None = None):
        self.root = root
        self.store = dist.PrefixStore(prefix, root) if prefix else root
        self.port = port
        self.prefix = prefix
        # Of a connection to a store that another process serves, or this one: its socket's inode.
        self.socket = socket

    def add(self, key: str, amount: int) -> int:
        """Adds to a counter and returns its new value."""
        return self.store.add(key, amount)

    def part(self, name: str) -> Store:
        """The keys that begin with a name."""
        return Store(self.root, self.port, f"{self.prefix}/{name}" if self.prefix else name, self.socket)

    def set_timeout(self, seconds: float) -> None:
        """How long a key that is not set is waited for."""
        self.root.set_timeout(_seconds(seconds))

    def clear(self) -> None:
        """Deletes the keys of this part. Versions of PyTorch that cannot list keys keep them."""
        if self.prefix and hasattr(self.root, "list_keys"):
            for key in self.root.list_keys():
                if key.startswith(self.prefix + "/"):
                    self.root.delete_key(key)


class Network:
    """Builds stores and groups for ranks that compute on ``device``.

    ``identity``: what has to be equal on all ranks, by the names that a message uses. ``tensors``: names, types and shapes
    of the state, which have to be equal, too.
    """

    def __init__(self, device: torch.device, identity: dict[str, Any], tensors: list[str]):
        self.device = device
        self.tensors = tensors
        digest = hashlib.sha256(json.dumps(tensors).encode()).hexdigest()
        self._identity = {**identity, "tensors": digest}
        # Why the ranks cannot train together. It is raised where the script sees it.
        self.mismatch: RoundhouseError | None = None

    def host(self, address: str, port: int, seconds: float) -> Store:
        """Serves a store on one address and port of this host; other addresses of the host do not answer."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
            listener.listen(1024)
        except OSError:
            listener.close()
            raise
        port = listener.getsockname()[1]
        store = dist.TCPStore(
            address,
            port,
            is_master=True,
            timeout=_seconds(seconds),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
            use_libuv=_HAS_LISTENING_LIBUV,
        )
        return Store(store, port)

    def dial(self, address: str, port: int, seconds: float) -> Store:
        """Connects to the store that a process serves."""
        before = open_sockets()
        store = dist.TCPStore(address, port, is_master=False, timeout=_seconds(seconds), wait_for_workers=False)
        return Store(store, port, socket=opened_to(port, before))

    def connect(
        self,
        store: Store,
        generation: int,
        rank: int,
        size: int,
        seconds: float,
        address: str,
        own_store_port: int | None,
    ) -> Group:
        """Connects the ranks that have gathered at the store; returns when all are connected."""
        place = (generation, rank, size)
        self._compare(store.store, rank)
        if self.device.type == "cuda":
            nccl = _nccl(store.store, rank, size, seconds)
            # NCCL connects in its first collective, and holds the lock meanwhile that an abort needs. Here nobody else has
            # the group yet. This thread may be a new one, whose device is the first one.
            with torch.cuda.device(self.device):
                nccl.allreduce([torch.zeros(1, device=self.device)]).wait()
            return Group(nccl, store, self.device, place, seconds, None)
        before = open_sockets()
        store.store.set(f"address/{rank}", address)
        gloo = _gloo(store.store, rank, size, seconds, address)
        peers = {found.decode() for found in store.store.multi_get([f"address/{peer}" for peer in range(size)])}
        ports = {store.port} | ({own_store_port} if own_store_port else set())
        wires = Wires(Connections(before, peers, ports), address, peers, ports)
        return Group(gloo, store, self.device, place, seconds, wires)

    def _compare(self, store: dist.Store, rank: int) -> None:
        """Before any collective: ranks whose rows have different lengths would wait for each other for ever."""
        if rank == 0:
            store.set("tensors", json.dumps(self.tensors))
            store.set("identity", json.dumps(self._identity))
            return
        first = json.loads(store.get("identity"))
        for name, own in self._identity.items():
            theirs = first.get(name)
            if theirs == own:
                continue
            if name == "tensors":
                own, theirs = _first_difference(self.tensors, json.loads(store.get("tensors")))
            kind = DataMismatch if name == "samples of the data set" else StateError
            self.mismatch = kind(
                f"rank {rank} has other {name} than rank 0: {own}, not {theirs}; all ranks need the same script, arguments and "
                "data"
            )
            raise self.mismatch


def _first_difference(own: list[str], theirs: list[str]) -> tuple[str, str]:
    for mine, other in zip(own, theirs):
        if mine != other:
            return mine, other
    return f"{len(own)} of them", str(len(theirs))


def _gloo(store: dist.Store, rank: int, size: int, seconds: float, address: str) -> Any:
    kind: Any = dist.ProcessGroupGloo
    options = kind._Options()
    options._timeout = _seconds(seconds)
    # Without it Gloo would listen where the host's name leads.
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    return dist.ProcessGroupGloo(store, rank, size, options)


class Wires(NamedTuple):
    """How the ranks of a generation reach each other over Gloo."""

    own: Connections
    address: str
    peers: set[str]
    store_ports: set[int]


def _nccl(store: dist.Store, rank: int, size: int, seconds: float) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = _seconds(seconds)
    # A communicator whose calls return at once, so that connecting has a timeout (TORCH_NCCL_NONBLOCKING_TIMEOUT).
    options.config.blocking = 0
    return dist.ProcessGroupNCCL(store, rank, size, options)


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
        self._is_aborted = False
        self.process_group: Any = None

    @property
    def tells_lost_peers(self) -> bool:
        """Whether a collective that fails returns an error on every rank. NCCL's hang until the group is aborted."""
        return self.device.type == "cpu"

    def begin_sum(self, values: list[float]) -> tuple[torch.Tensor, Any]:
        """Begins to sum numbers over the ranks, element by element; :meth:`end_sum` returns the sums."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        return tensor, self.backend.allreduce([tensor])

    def end_sum(self, begun: tuple[torch.Tensor, Any]) -> list[float]:
        """The sums, when all ranks have begun the same one."""
        tensor, work = begun
        work.wait()
        return tensor.tolist()

    def begin_broadcast(self, tensor: torch.Tensor, source: int) -> Any:
        """Begins to copy a tensor from rank ``source`` to all others; ``wait()`` of what it returns waits for it."""
        options = dist.BroadcastOptions()
        options.rootRank = source
        return self.backend.broadcast([tensor], options)

    def broadcast(self, address: int, length: int, source: int) -> None:
        """Copies ``length`` bytes of host memory from rank ``source`` to all others."""
        if length == 0:
            return
        host = torch.frombuffer((ctypes.c_uint8 * length).from_address(address), dtype=torch.uint8)
        moved = host if self.device.type == "cpu" else host.to(self.device)
        self.begin_broadcast(moved, source).wait()
        if moved is not host:
            host.copy_(moved)

    def set_timeout(self, seconds: float) -> None:
        """How long its collectives wait for their peers from now on."""
        self._timeout = seconds
        change = getattr(self.backend, "set_timeout", None) or getattr(self.backend, "_set_default_timeout", None)
        if change is not None:
            change(_seconds(seconds))

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
            backend = _nccl(store, rank, size, seconds)
            self._parts.append(backend)
        else:
            before = open_sockets()
            backend = _gloo(store, rank, size, seconds, self._wires.address)
            self._parts.append(Connections(before, self._wires.peers, self._wires.store_ports))
        if self._is_aborted:
            self._abort_parts()
        return backend

    def abort(self) -> None:
        """Makes all collectives that wait end, and all later ones fail, also on other ranks."""
        self._is_aborted = True
        if self._wires is None:
            _abort(self.backend)
        else:
            self._wires.own.cut()
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
        """Whether NCCL has noted that a collective failed. That collective itself does not return."""
        # PyTorch 2.7 and newer.
        error = getattr(self.backend, "get_error", None)
        return error is not None and error().name != "SUCCESS"

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
        self._abort_parts()
        leave_default()
        self.process_group = None
        if self._wires is None:
            return
        held, self.backend = [self.backend], None
        ends = threading.Thread(target=held.clear, name="left", daemon=True)
        ends.start()
        ends.join(_PATIENCE)
        if ends.is_alive():
            self._wires.own.cut()
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
        # PyTorch replaces it by one under which nothing is printed before it returns: ours ends the process.
        hook = sys.excepthook
        try:
            dist.init_process_group(
                _NAME,
                store=self._store.store,
                rank=self.rank,
                world_size=self.size,
            )
        finally:
            sys.excepthook = hook
            # A group that the script makes later is another one.
            _prepared.clear()
        self.process_group = dist.group.WORLD


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
