"""Groups, their connections and stores, in threads of this process."""

import concurrent.futures
import os
import socket
import time

import pytest
import torch
from roundhouse import network
from roundhouse.connections import Connections, open_sockets
from roundhouse.gradients import Gradients, Model
from roundhouse.network import Network
from world import until


def test_threads_of_a_group_end_with_it():
    def threads():
        return set(os.listdir("/proc/self/task"))

    network = Network(torch.device("cpu"), {}, [])
    store = network.host("127.0.0.1", 0, 30.0)
    before = threads()
    group = network.connect(store, 1, 0, 1, 30.0, "127.0.0.1", None)
    group.become_default()
    try:
        net = Model(torch.nn.Linear(2, 1), Gradients(), {})
        net._gradients.group = group
        net(torch.ones(1, 2)).sum().backward()
        assert net.module.weight.grad.tolist() == [[1.0, 1.0]]
        # A thread of an earlier test may end meanwhile.
        assert threads() - before
        net.drop()
    finally:
        group.close()
    # The system lists a thread for a short time after its end.
    until("the threads have ended", lambda: threads() <= before)


def two_groups():
    """The groups of two ranks, which are threads of this process."""
    network = Network(torch.device("cpu"), {}, [])
    store = network.host("127.0.0.1", 0, 30.0)
    stores = [store, network.dial("127.0.0.1", store.port, 30.0)]
    with concurrent.futures.ThreadPoolExecutor() as ranks:
        return list(ranks.map(lambda rank: network.connect(stores[rank], 1, rank, 2, 60.0, "127.0.0.1", None), range(2)))


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_objects_use_the_device_of_the_group(kind):
    network = Network(torch.device("cpu"), {}, [])
    store = network.host("127.0.0.1", 0, 30.0)
    group = network.connect(store, 1, 0, 1, 30.0, "127.0.0.1", None)
    # Like a group over NCCL: checking the device of objects needs no GPU.
    group.device = torch.device(kind)
    group.become_default()
    c10d = torch.distributed.distributed_c10d
    # PyTorch 2.4 has the other one.
    device_of = getattr(c10d, "_get_object_coll_device", None) or c10d._get_pg_default_device
    try:
        for own in (group.process_group, torch.distributed.new_group([0])):
            assert torch.device(device_of(own)) == torch.device(kind)
            assert torch.device(kind) in own._device_types
    finally:
        group.close()


def test_group_can_be_left_during_a_collective():
    groups = two_groups()
    work = groups[0].backend.allreduce([torch.ones(1)])
    began = time.monotonic()
    groups[0].close()
    assert time.monotonic() - began < 20
    with pytest.raises(RuntimeError):
        work.wait()
    groups[1].close()


@pytest.mark.parametrize("how", ["broadcast", "gradients"])
def test_abort_ends_the_wait_for_a_silent_peer(how):
    groups = two_groups()
    broken = []
    with concurrent.futures.ThreadPoolExecutor() as ranks:
        if how == "broadcast":
            waits = ranks.submit(lambda: groups[0].begin_broadcast(torch.zeros(1), 1).wait())
        else:
            work = groups[0].backend.allreduce([torch.ones(1)])
            waits = ranks.submit(groups[0].waits.future(work, "bucket", broken.append).wait)
        with pytest.raises(concurrent.futures.TimeoutError):
            waits.result(timeout=0.2)
        # The waits end with the abort itself, independent of Gloo's connections.
        groups[0].waits.abort()
        if how == "broadcast":
            with pytest.raises(RuntimeError, match="aborted"):
                waits.result(timeout=10)
        else:
            assert waits.result(timeout=10) == "bucket"
            assert "aborted" in str(broken[0])
        # Later waits end at once.
        with pytest.raises(RuntimeError, match="aborted"):
            groups[0].waits.until_done(work if how == "gradients" else groups[0].backend.allreduce([torch.ones(1)]))
    for group in groups:
        group.abort()
        group.close()


def test_wait_at_the_store_ends_with_the_generation():
    network = Network(torch.device("cpu"), {}, [])
    store = network.host("127.0.0.1", 0, 30.0)
    with concurrent.futures.ThreadPoolExecutor() as ranks:
        group = network.connect(network.dial("127.0.0.1", store.port, 30.0), 1, 0, 1, 30.0, "127.0.0.1", None)
        stores = network.dial("127.0.0.1", store.port, 30.0)
        waits = ranks.submit(group._store.store.get, "never")
        with pytest.raises(concurrent.futures.TimeoutError):
            waits.result(timeout=0.2)
        group.abort()
        with pytest.raises(RuntimeError):
            waits.result(timeout=10)
    assert stores.add("key", 1) == 1 and store.add("key", 1) == 2
    group.close()


def test_only_connections_to_peers_are_closed():
    listener = socket.create_server(("127.0.0.1", 0))

    def pair():
        near = socket.create_connection(listener.getsockname())
        return near, listener.accept()[0]

    early, _peer_of_early = pair()
    before = open_sockets()
    own, peer = pair()
    stores = socket.create_server(("127.0.0.1", 0))
    of_store = socket.create_connection(stores.getsockname())
    elsewhere = Connections(before, {"127.0.0.9"}, set())
    assert len(elsewhere) == 0
    group = Connections(before, {"127.0.0.1"}, {stores.getsockname()[1]})
    group.cut()
    group.close()
    assert own.recv(1) == b"" and peer.recv(1) == b""
    for left in (early, of_store):
        left.setblocking(False)
        with pytest.raises(BlockingIOError):
            left.recv(1)


def test_cached_memory_is_released_before_nccl_connects(monkeypatch):
    done = []

    class Nccl:
        def __init__(self, *_):
            done.append("nccl")
            raise RuntimeError("there is no GPU")

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("empty cache"))
    monkeypatch.setattr(network, "nccl", Nccl)
    meeting = Network(torch.device("cuda", 0), {}, [])
    with pytest.raises(RuntimeError, match="there is no GPU"):
        meeting.connect(meeting.host("127.0.0.1", 0, 5.0), 1, 0, 1, 5.0, "127.0.0.1", None)
    assert done == ["empty cache", "nccl"]
