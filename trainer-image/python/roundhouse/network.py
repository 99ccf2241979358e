"""Stores for the rendezvous of ranks, and the group that they then connect to."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from .connections import Connections, opened_to, open_sockets
from .errors import DataMismatch, RoundhouseError, StateError
from .groups import Group, Wires, duration, gloo, nccl
from .replica import Replica
from .stores import serve

# Seconds for which a process waits at its end for attempts to connect that it no longer needs. An
# attempt to reach a store takes at most 2 s. One to connect with ranks that are lost may take
# longer, and the process does not wait for its end.
_MOST_AT_END = 10.0


class Store:
    """A connection to a key-value store, or to the keys of the store with a prefix."""

    def __init__(self, root: dist.Store, port: int, prefix: str = "", socket: int | None = None):
        self.root = root
        self.store = dist.PrefixStore(prefix, root) if prefix else root
        self.port = port
        self.prefix = prefix
        # Inode of the socket of the connection, to a store in this or another process.
        self.socket = socket

    def add(self, key: str, amount: int) -> int:
        """Adds to a counter and returns its new value."""
        return self.store.add(key, amount)

    def settled(self, key: str, value: str) -> str:
        """Gives a key a value, unless it has one. Returns its value, which never changes."""
        return self.store.compare_set(key, "", value).decode()

    def part(self, name: str) -> Store:
        """The store with the keys that start with a name."""
        return Store(self.root, self.port, f"{self.prefix}/{name}" if self.prefix else name, self.socket)

    def set_timeout(self, seconds: float) -> None:
        """Sets how long later calls wait for a missing key."""
        self.root.set_timeout(duration(seconds))

    def clear(self) -> None:
        """Deletes the keys of this part. Has no effect in versions of PyTorch that cannot list
        keys."""
        if self.prefix and hasattr(self.root, "list_keys"):
            for key in self.root.list_keys():
                if key.startswith(self.prefix + "/"):
                    self.root.delete_key(key)


class Network:
    """Creates stores and groups for ranks that compute on ``device``.

    ``identity``: properties that must be equal on all ranks, by the names that messages use.
    ``tensors``: names, types and shapes of the state, which must be equal, too. ``replica``: the
    processes with which this one shares the state.
    """

    def __init__(
        self, device: torch.device, identity: dict[str, Any], tensors: list[str], replica: Replica | None = None
    ):
        self.device = device
        self._replica = replica
        self.tensors = tensors
        digest = hashlib.sha256(json.dumps(tensors).encode()).hexdigest()
        self._identity = {**identity, "tensors": digest}
        # The reason why the ranks cannot train together. It is raised later, where the script sees
        # it.
        self.mismatch: RoundhouseError | None = None
        self._attempt_ended = threading.Condition()
        self._num_attempts = 0

    @contextlib.contextmanager
    def _attempt(self) -> Iterator[None]:
        with self._attempt_ended:
            self._num_attempts += 1
        try:
            yield
        finally:
            with self._attempt_ended:
                self._num_attempts -= 1
                self._attempt_ended.notify_all()

    def end(self) -> None:
        """Waits for threads that still connect to a generation that did not form. If such a thread
        returns from PyTorch while Python ends, the process aborts."""
        with self._attempt_ended:
            self._attempt_ended.wait_for(lambda: self._num_attempts == 0, _MOST_AT_END)

    def host(self, address: str, port: int, seconds: float) -> Store:
        """Serves a store on one address and port of this host; other addresses of the host do not
        answer."""
        with self._attempt():
            store, port = serve(address, port, seconds)
        return Store(store, port)

    def dial(self, address: str, port: int, seconds: float) -> Store:
        """Connects to the store of another process."""
        before = open_sockets()
        with self._attempt():
            store = dist.TCPStore(address, port, is_master=False, timeout=duration(seconds), wait_for_workers=False)
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
        """Connects the ranks that have gathered at the store. Returns when all are connected."""
        with self._attempt():
            return self._connected(store, (generation, rank, size), seconds, address, own_store_port)

    def _connected(
        self, store: Store, place: tuple[int, int, int], seconds: float, address: str, own_store_port: int | None
    ) -> Group:
        _, rank, size = place
        self._compare(store.store, rank)
        if self.device.type == "cuda":
            # NCCL does not use PyTorch's allocator, which may have cached nearly all memory for
            # batches of another size.
            torch.cuda.empty_cache()
            backend = nccl(store.store, rank, size, seconds)
            # NCCL connects in its first collective, while holding the lock that an abort needs.
            # Here no other thread has the group yet. Set the device, because this thread may be new
            # and have the first device.
            with torch.cuda.device(self.device):
                backend.allreduce([torch.zeros(1, device=self.device)]).wait()
            return self._divided(Group(backend, store, self.device, place, seconds, None))
        before = open_sockets()
        store.store.set(f"address/{rank}", address)
        backend = gloo(store.store, rank, size, seconds, address)
        peers = {found.decode() for found in store.store.multi_get([f"address/{peer}" for peer in range(size)])}
        ports = {store.port} | ({own_store_port} if own_store_port else set())
        wires = Wires(Connections(before, peers, ports), address, peers, ports)
        return self._divided(Group(backend, store, self.device, place, seconds, wires))

    def _divided(self, group: Group) -> Group:
        if self._replica is not None:
            group.divide(self._replica.shard, self._replica.size)
        return group

    def _compare(self, store: dist.Store, rank: int) -> None:
        """Compares the ranks before any collective, because ranks whose rows have different lengths
        would wait for each other indefinitely."""
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
            elif isinstance(own, list) and isinstance(theirs, list):
                own, theirs = _first_difference(own, theirs)
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
