"""The connections on which the processes of a replica agree, here of threads."""

import concurrent.futures
import contextlib
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
from roundhouse.links import Call, CollectiveMismatch, Links, Subject
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


@pytest.fixture
def reading(monkeypatch):
    """The connections from which a process has begun to read."""
    found = set()
    read = roundhouse.links._Link.read

    def noted(link, *args):
        found.add(link)
        return read(link, *args)

    monkeypatch.setattr(roundhouse.links._Link, "read", noted)
    return found


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


OTHERS = [
    (Subject.SUM, [1.0], "a sum of 1 numbers"),
    (Subject.HOLDS, [], "the outcome of a collective"),
    (Subject.VOTE, None, "the vote of job.commit"),
    # More than the buffers of a connection hold, so the process still sends when it is refused.
    (Subject.SUM, [0.5] * 3_000_000, "a sum of 3000000 numbers"),
]


@pytest.mark.parametrize("odd", [0, 1, 2])
@pytest.mark.parametrize(("subject", "numbers", "words"), OTHERS, ids=["length", "place", "none", "large"])
def test_processes_at_different_places_end(connected, odd, subject, numbers, words):
    links = connected(3)
    calls = [(Subject.SUM, [1.0, 2.0])] * 3
    calls[odd] = subject, numbers
    errors = agreed(links, calls)
    assert {type(error) for error in errors} == {CollectiveMismatch}
    usual = "a sum of 2 numbers"
    wanted = f"process 0 is at {usual if odd else words}, and process {odd or 1} is at {words if odd else usual}"
    assert {str(error) for error in errors} == {wanted}
    own = Call(odd, subject, -1 if numbers is None else len(numbers))
    assert all(own in error.calls for error in errors)
    assert all(isinstance(one, OSError) for one in agreed(links, [(Subject.SUM, [1.0])] * 3))


@pytest.mark.parametrize("lost", [0, 2])
def test_lost_process_ends_the_wait_of_the_others(connected, reading, lost):
    links = connected(3)
    others = [shard for shard in range(3) if shard != lost]
    # Every process but the first one waits for the first one.
    waits = {links[shard]._links[0 if shard else lost - 1] for shard in others}
    reading.clear()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = [pool.submit(links[shard].sum, Subject.SUM, [1.0]) for shard in others]
        until("both wait", lambda: waits <= reading, 20)
        began = time.monotonic()
        links[lost].close()
        assert all(isinstance(one.exception(), OSError) for one in found)
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("closed", [0, 1])
def test_close_ends_the_wait_of_another_thread(connected, reading, closed):
    links = connected(2)
    reading.clear()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        found = pool.submit(links[closed].sum, Subject.SUM, [1.0])
        until("the thread waits", lambda: reading, 20)
        began = time.monotonic()
        links[closed].close()
        assert isinstance(found.exception(), OSError)
    assert time.monotonic() - began < 15
    assert links[1 - closed].is_closed()


def test_closed_connection_is_noticed_without_a_sum(connected):
    links = connected(2)
    assert not links[0].is_closed() and not links[1].is_closed()
    # What a process has sent before does not hide its end.
    links[1]._links[0].send(Subject.SUM, [1.0])
    links[1].close()
    until("the end is noticed", links[0].is_closed, 20)
    assert links[1].is_closed()


def test_fork_while_another_thread_waits(connected, reading):
    links = connected(2)
    reading.clear()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        found = pool.submit(links[0].sum, Subject.SUM, [1.0])
        until("the thread waits", lambda: reading, 20)
        child = os.fork()
        if child == 0:
            # As after_in_child in a process that loads samples.
            links[0].close_in_child()
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


def test_slow_client_delays_the_start_by_its_greeting_alone(monkeypatch):
    monkeypatch.setattr(roundhouse.links, "_GREETING", 0.5)
    store, is_over, sent = dist.HashStore(), threading.Event(), []

    def dribble(client):
        with contextlib.suppress(ConnectionError):
            while not is_over.wait(0.1):
                client.sendall(b"0")
                sent.append(1)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(Links, store, 0, 2, "127.0.0.1", start=20, patience=20)
        port = int(store.get("links").decode().split()[0])
        with socket.create_connection(("127.0.0.1", port), 20) as client:
            pool.submit(dribble, client)
            second = Links(store, 1, 2, "127.0.0.1", start=20, patience=20)
            first.result()
            is_over.set()
    # Otherwise the client sends as many bytes as a token has, 32, before it is refused.
    assert len(sent) < 32
    for one in (first.result(), second):
        one.close()
