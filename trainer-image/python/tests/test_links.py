"""The connections on which the processes of a replica agree, here of threads."""

import concurrent.futures
import functools
import operator
import os
import random
import signal
import socket
import threading
import time

import pytest
import roundhouse.links
import torch.distributed as dist
from roundhouse.links import Links, Subject
from world import until


@pytest.fixture
def connected():
    """Connects a number of processes, and closes what they have at the end."""
    opened = []

    def connect(size):
        store = dist.HashStore()
        with concurrent.futures.ThreadPoolExecutor(size) as pool:
            links = list(pool.map(lambda shard: Links(store, shard, size, "127.0.0.1", start=20, patience=20), range(size)))
        opened.extend(links)
        return links

    yield connect
    for one in opened:
        one.close()


def agreed(links, calls):
    """What each process gets, or its error. ``calls``: the arguments of each process."""

    def run(shard):
        try:
            return links[shard].sum(*calls[shard])
        except OSError as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(len(links)) as pool:
        return list(pool.map(run, range(len(links))))


@pytest.mark.parametrize("size", [2, 3, 8])
def test_all_processes_get_the_same_sums(connected, size):
    links = connected(size)
    drawn = random.Random(5)
    for length in (0, 1, 7, 50_000):
        numbers = [[drawn.uniform(-1, 1) * 10 ** drawn.randint(-9, 9) for _ in range(length)] for _ in range(size)]
        found = agreed(links, [(Subject.SUM, own) for own in numbers])
        assert found == [[functools.reduce(operator.add, column) for column in zip(*numbers)]] * size


def test_one_process_that_does_not_agree_decides_for_all(connected):
    links = connected(3)
    for shard in range(3):
        calls = [(Subject.VOTE, None if other == shard else [1.0, 2.0]) for other in range(3)]
        assert agreed(links, calls) == [None] * 3
    assert agreed(links, [(Subject.HOLDS, [])] * 3) == [[]] * 3


@pytest.mark.parametrize("calls", [(Subject.SUM, [1.0]), (Subject.HOLDS, [1.0, 2.0])], ids=["length", "place"])
def test_processes_at_different_places_end(connected, calls):
    links = connected(3)
    for calls in ([(Subject.SUM, [1.0, 2.0]), (Subject.SUM, [1.0, 2.0]), calls], [(Subject.SUM, [1.0])] * 3):
        assert all(isinstance(one, OSError) for one in agreed(links, calls))


@pytest.mark.parametrize("lost", [0, 2])
def test_lost_process_ends_the_wait_of_the_others(connected, lost):
    links = connected(3)
    threading.Timer(0.2, links[lost].close).start()
    began = time.monotonic()
    others = [shard for shard in range(3) if shard != lost]

    def run(shard):
        with pytest.raises(OSError):
            links[shard].sum(Subject.SUM, [1.0])

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(run, others))
    assert time.monotonic() - began < 15


def test_closed_connection_is_noticed_without_a_sum(connected):
    links = connected(2)
    assert not links[0].is_closed() and not links[1].is_closed()
    # What a process has sent before does not hide its end.
    links[1]._links[0].send(Subject.SUM, [1.0])
    links[1].close()
    until("the end is noticed", links[0].is_closed, 20)
    assert links[1].is_closed()


def test_fork_while_another_thread_waits(connected):
    links = connected(2)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        found = pool.submit(links[0].sum, Subject.SUM, [1.0])
        time.sleep(0.2)
        child = os.fork()
        if child == 0:
            # As after_in_child in a process that loads samples.
            links[0].close()
            os._exit(0)
        try:
            until("the child process has closed its connections", lambda: os.waitpid(child, os.WNOHANG)[0], 20)
        except AssertionError:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
        finally:
            assert links[1].sum(Subject.SUM, [2.0]) == found.result() == [3.0]


def test_other_programs_that_connect_are_ignored(monkeypatch):
    monkeypatch.setattr(roundhouse.links, "_GREETING", 0.5)
    store = dist.HashStore()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(Links, store, 0, 2, "127.0.0.1", start=20, patience=20)
        port = int(store.get("links").decode().split()[0])
        for data in (b"", b"GET / HTTP/1.1\r\nHost: worker\r\nUser-Agent: probe\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port), 20) as other:
                other.sendall(data)
        with socket.create_connection(("127.0.0.1", port), 20):
            second = Links(store, 1, 2, "127.0.0.1", start=20, patience=20)
            first.result()
        links = [first.result(), second]
    assert agreed(links, [(Subject.SUM, [1.0]), (Subject.SUM, [2.0])]) == [[3.0], [3.0]]
    for one in links:
        one.close()
