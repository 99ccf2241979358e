"""The program that starts scripts for the tests."""

import os
import signal

from starter import Starter


def test_starter_ends_although_a_forked_process_lives():
    starter = Starter()
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        starter.close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
