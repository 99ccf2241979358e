"""A replica: the processes of one worker, which share one copy of the state.

Its processes are PyTorch's default group, made once, before the model is sharded, and never made
again while the replica lives. The generations change around it: each process meets those of other
replicas that have the same shard.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import pathlib
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from ._native import ask_to_leave, is_asked_to_leave
from .connections import Connections
from .errors import ConfigError, PeerLost, causes, words_of
from .groups import abort, duration, gloo
from .layout import SAME_SAMPLES, Layout
from .links import CollectiveMismatch, Links, Subject
from .replica_pods import LOOPBACK, ReplicaPods, one_pod
from .stores import serve
from .versions import OLDEST_WITH_REPLICAS, require_torch

# Seconds until all processes of a replica have to be there, and for a collective of the replica.
# The agent ends processes that hang; compiling a model may take long.
_START = 600.0
_PATIENCE = 3600.0
# Seconds between two reads of another process's decision.
_LOOK_INTERVAL = 0.005
# Parts of PyTorch's errors of a collective whose peer is gone.
_OF_LOST_PEERS = ("Connection", "connection", "closed by peer", "Broken pipe", "Timed out", "NCCL", "socketPoll")

_current: Replica | None = None
Answer = TypeVar("Answer")


def current() -> Replica | None:
    """The replica of this process, if it has made one."""
    return _current


class Replica:
    """The processes of one worker. ``shard``: the index of this process."""

    def __init__(self, shard: int, size: int, pods: ReplicaPods, store: dist.Store | None):
        self.shard = shard
        self.size = size
        # The same in all processes of one life of the replica.
        self.number = zlib.crc32(pods.life.encode()) & 0x7FFF_FFFF
        self._store = store
        self._addresses = set(pods.addresses)
        self._links: Links | None = None
        # For tensors in host memory, whatever the device is.
        self._control: Any = None
        if store is not None:
            self._links = _connected(store, shard, size, pods)
            self._control = gloo(dist.PrefixStore("control", store), shard, size, _PATIENCE, pods.own_address)
        self.mesh: Any = None
        # Each exchange has its own keys in the store.
        self._num_gathered = 0
        # The error of a lost process of the replica.
        self._loss: PeerLost | None = None
        self.divide(Layout(["shard"], [size], ["shard"]))

    def divide(self, layout: Layout) -> None:
        """Notes which processes have the same samples or the same part of the model."""
        self.layout = layout
        # Which of the samples of the replica this process computes, of how many parts.
        self.data_index, self.num_data = layout.data_indices[self.shard], layout.num_data
        # The processes with which this one has other samples of the same part of the model.
        self.of_data = set(layout.parts[layout.part_of[self.shard]])

    def data_ranks(self, rank: int) -> range:
        """The ranks of the processes of this replica that have different samples, if such processes
        alone are counted. ``rank``: that of this process."""
        first = rank - self.data_index
        return range(first, first + self.num_data)

    def sources(self, knows: Sequence[float]) -> list[int]:
        """The processes with the same samples as this one whose values count: see
        :meth:`Layout.sources <roundhouse.layout.Layout.sources>`."""
        return self.layout.sources(self.shard, knows)

    def counted(self, values: Sequence[float] | None) -> list[float]:
        """The numbers that this process adds to a sum over all processes of the job: its
        ``values``, or zeros if another process counts for the same samples. ``values`` are None if
        this process does not know them."""
        lengths = [0.0] * self.size
        lengths[self.shard] = 0.0 if values is None else len(values) + 1.0
        # Without such processes each one has to know its values.
        if self.num_data < self.size:
            lengths = self.sum(lengths)
            sources = self.sources(lengths)
        else:
            sources = [self.shard] if values is not None else []
        if not sources:
            raise ConfigError("job.sum(None) in all processes with the same samples: give the numbers in the process that has them")
        # One of them, not their mean: a sum of whole numbers stays whole.
        if sources[-1] == self.shard and values is not None:
            return list(values)
        return [0.0] * (int(lengths[sources[-1]]) - 1)

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sums numbers over the processes of the replica.

        Raises :class:`~roundhouse.errors.PeerLost` if one of them is lost: then the replica is, and
        this process has to end.
        """
        sums = self.agree(Subject.SUM, values)
        assert sums is not None
        return sums

    def all(self, holds: bool) -> bool:
        """Whether something holds in all processes of the replica."""
        return self.agree(Subject.HOLDS, [] if holds else None) is not None

    def agree(self, subject: Subject, values: Sequence[float] | None) -> list[float] | None:
        """As :meth:`sum`, but None in all processes if one of them passes None."""
        if self._links is None:
            return None if values is None else list(values)
        self.check()
        try:
            return self._links.sum(subject, values)
        except OSError as error:
            raise self.lost(error) from error

    def vote(self, values: Sequence[float] | None) -> list[float] | None:
        """As :meth:`agree` at the end of a step. If one process was asked to leave, so are all,
        because none of them can save its state without the others."""
        is_asked = is_asked_to_leave()
        sums = self.agree(Subject.VOTE, None if values is None else [*values, float(is_asked)])
        if sums is None:
            return None
        *sums, num_asked = sums
        if num_asked > 0 and not is_asked:
            ask_to_leave()
        return sums

    def decide(self, key: str, holds: bool) -> bool:
        """Whether something holds in all processes of the replica. Unlike in :meth:`all`, a process
        in which it does not hold returns at once, because the other processes may never call this.
        ``key`` must be new for each decision."""
        if self._store is None:
            return holds
        try:
            self._store.set(f"{key}/{self.shard}", str(int(holds)))
            return holds and all(self._awaited(f"{key}/{shard}") == b"1" for shard in range(self.size))
        except RuntimeError as error:
            raise self.lost(error) from error

    def _awaited(self, key: str) -> bytes:
        """The value of a key that another process of the replica sets."""
        assert self._store is not None
        while not self._store.check([key]):
            self.check_alive()
            time.sleep(_LOOK_INTERVAL)
        return self._store.get(key)

    def meet(self, subject: Subject) -> None:
        """Must be called where all processes of the replica have to be at the same place."""
        self.agree(subject, [])

    def begin_pass(self) -> None:
        """Must be called before a pass in which the processes of the replica wait for each other.
        If they made different numbers of passes, their collectives would wait for minutes."""
        if not self.layout.has_own_gradients:
            self.meet(Subject.PASS)

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Copies a tensor in host memory from process ``source`` to the others."""
        if self._control is None:
            return
        options = dist.BroadcastOptions()
        options.rootRank = source
        try:
            self._control.broadcast([tensor], options).wait()
        except RuntimeError as error:
            raise self.lost(error) from error

    def gather(self, key: str, own: Any) -> list[Any]:
        """What each process of the replica passes, in order. It must be JSON. All of them must call
        this in the same order."""
        self._num_gathered += 1
        key = f"{key}/{self._num_gathered}"
        if self._store is None:
            return [json.loads(json.dumps(own))]
        try:
            self._store.set(f"{key}/{self.shard}", json.dumps(own))
            return [json.loads(self._store.get(f"{key}/{shard}")) for shard in range(self.size)]
        except RuntimeError as error:
            raise self.lost(error) from error

    def close(self) -> None:
        """Ends the connections for the replica's own decisions."""
        self._control = None
        if self._links is not None:
            self._links.close()

    def cut(self) -> None:
        """Ends all waits for the other pods of the replica, in other threads: they get an error."""
        self._loss = self._loss or PeerLost("the agent has ended this life of the replica")
        if self._links is not None:
            self._links.shut_down()
        if torch.cuda.is_available() and dist.is_initialized():
            abort(dist.distributed_c10d._get_default_group()._get_backend(torch.device("cuda")))
        # Also those of the script's groups, and to the store.
        others = Connections({}, self._addresses, set())
        others.cut()
        others.close()

    def may_explain(self, error: RuntimeError) -> bool:
        """Whether the loss of a process of the replica may be the cause of an error, such as that
        of a collective within a sharded model."""
        # A schedule of a pipeline raises an error of its own from that of a collective.
        words = " ".join(str(one) for one in causes(error))
        return self.size > 1 and any(known in words for known in _OF_LOST_PEERS)

    def lost(self, error: BaseException) -> PeerLost:
        words = f"a process of this replica is lost, so all its processes restart: {words_of(error)}"
        if isinstance(error, CollectiveMismatch):
            words = _words_of_mismatch(error)
        self._loss = PeerLost(words)
        return self._loss

    def check(self) -> None:
        """Raises :class:`~roundhouse.errors.PeerLost` if a process of the replica is lost. A script
        may have caught the first error, as it may if another replica is lost."""
        if self._loss is not None:
            raise self._loss

    def check_alive(self) -> None:
        """As :meth:`check`, and notices a process that has ended since the last sum."""
        self.check()
        if self._links is not None and self._links.is_closed():
            raise self.lost(ConnectionError("a process of the replica has ended"))

    def explains(self, error: BaseException) -> bool:
        """Whether an error of the script shows that a process of the replica is lost."""
        return self._loss is not None or isinstance(error, RuntimeError) and self.may_explain(error)


def replica_mesh(*names: str, shape: Sequence[int] | None = None, data: Sequence[str] | None = None) -> Any:
    """The processes of this worker as a ``DeviceMesh``, for ``fully_shard``, ``parallelize_module``
    and the like.

    Call it once, before the model is sharded and before ``rh.join``, in a job with
    ``workers.sharded``. The processes of each worker then hold one copy of the model together: a
    replica, which is PyTorch's default group. In one process it is a mesh of one.

    ``names`` and ``shape``: the dimensions of the mesh, as ``("fsdp", "tp"), shape=(4, 2)``. The
    default is one dimension of all processes, ``"shard"``. ``data``: the dimensions whose processes
    compute other samples; by default all but those that are named ``tp``, ``pp`` or ``cp``.

    It needs PyTorch 2.7 or newer. Raises :class:`~roundhouse.errors.ConfigError` if PyTorch is
    older, or if the shape does not fit the number of processes of a worker.
    """
    require_torch(OLDEST_WITH_REPLICAS, "rh.replica_mesh")
    from torch.distributed.device_mesh import init_device_mesh

    global _current
    if _current is not None:
        raise ConfigError("rh.replica_mesh was called twice: a process has one mesh; keep what it returns, and slice it by its names")
    pods = ReplicaPods.of_environment()
    size = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) * len(pods.addresses) if _has_agent() else 1
    names = names or ("shard",)
    sizes = _shape(names, shape, size)
    data = [name for name in names if name not in SAME_SAMPLES] if data is None else list(data)
    unknown = [name for name in data if name not in names]
    if unknown:
        raise ConfigError(f"rh.replica_mesh: data names {', '.join(unknown)}, which is no dimension of {', '.join(names)}")
    if dist.is_initialized():
        raise ConfigError(
            "rh.replica_mesh: PyTorch has a default group already; remove torch.distributed.init_process_group, rh.replica_mesh makes it"
        )
    replica = _begin(size, pods)
    replica.divide(Layout(names, sizes, data))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    replica.mesh = init_device_mesh(device, tuple(sizes), mesh_dim_names=tuple(names))
    _current = replica
    atexit.register(_end, replica)
    return replica.mesh


def _end(replica: Replica) -> None:
    """Ends the groups of the replica before the interpreter: their threads would abort the process
    if they still ran then."""
    replica.close()
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()


def check_join(local_world_size: int) -> None:
    """Raises :class:`~roundhouse.errors.ConfigError` if the job is sharded and the script has made
    no mesh."""
    size = local_world_size * len(ReplicaPods.of_environment().addresses)
    if _current is None and os.environ.get("ROUNDHOUSE_REPLICA_FILE") and size > 1:
        raise ConfigError(
            "rh.join in a job with workers.sharded, whose processes share one copy of the model, without rh.replica_mesh(): call it "
            "before the model is sharded, and shard the model with the mesh; or remove workers.sharded"
        )


def _has_agent() -> bool:
    return bool(os.environ.get("ROUNDHOUSE_MEMBERSHIP_FILE"))


def _words_of_mismatch(error: CollectiveMismatch) -> str:
    """What to change if the processes of a replica are at different places of the script."""
    if error.subjects & {Subject.RESULT, Subject.END}:
        return (
            "one process of this worker calls job.save_result or leaves the job, and another one does not, so all of them restart: "
            f"call job.save_result in all processes, and not behind `if job.rank == 0` ({error})"
        )
    if Subject.PASS in error.subjects:
        return (
            "one process of this worker begins a pass of the model, and another one does not, so all of them restart: they have to "
            "make the same number of passes in a step, for which x.tensor_split(4) divides samples into a number of parts, and to "
            f"call job.sum and others at the same places ({error})"
        )
    return (
        "the processes of this worker call different collectives, so all of them restart: they have to call job.sum, job.commit and "
        f"others at the same places, and job.sum with the same number of values ({error})"
    )


def _connected(store: dist.Store, shard: int, size: int, pods: ReplicaPods) -> Links:
    links = Links(store, shard, size, pods.addresses[0], start=_START, patience=_PATIENCE)
    # Otherwise a process that loads samples would keep the connections of a killed one open.
    os.register_at_fork(after_in_child=links.close_in_child)
    return links


def _shape(names: Sequence[str], shape: Sequence[int] | None, size: int) -> list[int]:
    if shape is None and len(names) == 1:
        return [size]
    if shape is None:
        raise ConfigError(f"rh.replica_mesh{tuple(names)}: give the size of each dimension, as shape=({size}, 1)")
    sizes = [int(one) for one in shape]
    if len(sizes) != len(names) or any(one < 1 for one in sizes):
        raise ConfigError(f"rh.replica_mesh: shape={tuple(shape)} has to give a size of at least 1 for each of {', '.join(names)}")
    if math.prod(sizes) != size:
        raise ConfigError(
            f"rh.replica_mesh: shape={tuple(sizes)} is for {math.prod(sizes)} processes, and a worker has {size}: change the shape, or "
            "workers.procsPerWorker, which is by default the number of GPUs of a worker; the processes of workers.podsPerReplica pods "
            "are one worker"
        )
    return sizes


def _begin(size: int, pods: ReplicaPods) -> Replica:
    file = os.environ.get("ROUNDHOUSE_REPLICA_FILE", "")
    if size > 1 and not file:
        raise ConfigError(
            f"rh.replica_mesh in a worker of {size} processes, each of which has the whole model: set workers.sharded: true in the "
            "TrainingJob"
        )
    shard = pods.shard() if size > 1 else 0
    if not pods.are_several:
        # PyTorch would listen on the address of the host name, but these groups are within one pod.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # The launcher's variables name another store, which is not that of this worker.
    store: dist.Store = dist.HashStore() if size == 1 else _store(pathlib.Path(file), shard, pods)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(
        backend, store=dist.PrefixStore("default", store), rank=shard, world_size=size, timeout=duration(_PATIENCE)
    )
    named = pods if pods.are_several else one_pod(f"{os.uname().nodename} {file}")
    return Replica(shard, size, named, store if size > 1 else None)


def _store(file: pathlib.Path, shard: int, pods: ReplicaPods) -> dist.Store:
    """The store of the processes of this worker: the first process serves it. In one pod it names
    its port in a file."""
    if pods.are_several:
        return pods.store(shard, _START)
    if shard == 0:
        store, port = serve(LOOPBACK, 0, _START)
        partial = file.with_name(file.name + ".partial")
        partial.write_text(str(port))
        partial.replace(file)
        return store
    known = _until(lambda: file.read_text() if file.exists() else None, f"the first process of this worker ({file})")
    return dist.TCPStore(LOOPBACK, int(known), is_master=False, timeout=duration(_START), wait_for_workers=False)


def _until(look: Callable[[], Answer | None], what: str) -> Answer:
    ends_at = time.monotonic() + _START
    while (found := look()) is None:
        if time.monotonic() > ends_at:
            raise PeerLost(f"rh.replica_mesh: {what} has not come within {_START:.0f} s")
        time.sleep(0.01)
    return found
