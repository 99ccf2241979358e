"""The pods whose processes are one replica, as the agent names them to a process."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass

import torch.distributed as dist

from .errors import PeerLost
from .groups import duration
from .stores import serve

LOOPBACK = "127.0.0.1"
# Seconds of one attempt to reach the store.
_ATTEMPT = 2.0


@dataclass(frozen=True)
class ReplicaPods:
    """``life``: names the life of the replica. ``pod``: the index of this pod. ``addresses``: of
    all pods. ``port``: of the store of the first process."""

    life: str
    pod: int
    addresses: tuple[str, ...]
    port: int = 0

    @classmethod
    def of_environment(cls) -> ReplicaPods:
        """The pods of this process's replica: one if the agent names none."""
        addresses = os.environ.get("ROUNDHOUSE_REPLICA_ADDRESSES", "")
        if not addresses:
            return one_pod("")
        pod = int(os.environ["ROUNDHOUSE_REPLICA_POD"])
        port = int(os.environ["ROUNDHOUSE_REPLICA_STORE_PORT"])
        return cls(os.environ["ROUNDHOUSE_REPLICA_LIFE"], pod, tuple(addresses.split(",")), port)

    @property
    def are_several(self) -> bool:
        return len(self.addresses) > 1

    @property
    def own_address(self) -> str:
        return self.addresses[self.pod]

    def shard(self) -> int:
        """The index of this process in the replica."""
        procs, local_rank = (int(os.environ.get(name, default)) for name, default in (("LOCAL_WORLD_SIZE", "1"), ("LOCAL_RANK", "0")))
        return self.pod * procs + local_rank

    def store(self, shard: int, seconds: float) -> dist.Store:
        """The store of the replica, which its first process serves.

        Raises :class:`~roundhouse.errors.PeerLost` if it is not there within ``seconds``."""
        if shard == 0:
            served, _ = serve(self.own_address, self.port, seconds)
            store = dist.PrefixStore(self.life, served)
            store.set("is_here", "")
            return store
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            # The first process of a former life may still serve its store.
            with contextlib.suppress(RuntimeError):
                reached = dist.TCPStore(
                    self.addresses[0], self.port, is_master=False, timeout=duration(_ATTEMPT), wait_for_workers=False
                )
                store = dist.PrefixStore(self.life, reached)
                store.wait(["is_here"], duration(_ATTEMPT))
                reached.set_timeout(duration(seconds))
                return store
            time.sleep(0.02)
        raise PeerLost(f"rh.replica_mesh: the first process of this replica ({self.addresses[0]}) has not come within {seconds:.0f} s")


def one_pod(life: str) -> ReplicaPods:
    """A replica in this pod alone."""
    return ReplicaPods(life, 0, (LOOPBACK,))
