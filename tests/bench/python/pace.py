"""Lets the benchmark control a rank: it makes a number of steps, reports their duration, and
waits."""
import time
from multiprocessing.connection import Client


class Pace:
    """A connection to the benchmark. The steps before it was opened are not timed."""

    def __init__(self, port, rank):
        self.connection = Client(("127.0.0.1", port))
        self.connection.send(rank)
        self.losses, self.left = [], 0

    def continues(self, loss):
        """Call this after each step. It waits during the other side's turns, and returns whether
        there is another step."""
        self.losses.append(loss.item())
        self.left -= 1
        if self.left > 0:
            return True
        if self.left == 0:
            self.connection.send((time.perf_counter() - self.began, time.process_time() - self.used, self.losses))
        self.losses, self.left = [], self.connection.recv()
        self.began, self.used = time.perf_counter(), time.process_time()
        return self.left > 0
