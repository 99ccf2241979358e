"""Starts scripts in processes that have already imported PyTorch, because the import takes seconds.

:class:`Starter` starts this file as a program, which imports PyTorch once and forks for each
script. The script itself imports the package. Such a process ends like any other process, because
the script runs in the interpreter's main module.
"""

import builtins
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
import types
import warnings

# A reference that keeps the module of this program alive.
before = []
# Modules that the starter imports at once.
MODULES = ["numpy", "safetensors.torch", "torch", "torch.distributed.nn.functional", "torch._dynamo.utils", "torch.utils.data"]


class Forked:
    """The process of a script, with the interface of ``subprocess.Popen``."""

    def __init__(self, starter, pid):
        self._starter, self.pid, self.returncode = starter, pid, None

    def poll(self):
        if self.returncode is None:
            self._starter.receive(0)
            self.returncode = self._starter.ended.pop(self.pid, None)
        return self.returncode

    def wait(self, timeout=None):
        end = time.monotonic() + (timeout or float("inf"))
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            self._starter.receive(1.0)
        return self.returncode

    def send_signal(self, number):
        # The starter reports an ended process before it reaps it, so the pid cannot belong to
        # another process.
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # It has ended since.
                os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class Starter:
    """The program that forks a process for each script. ``modules``: more modules to import."""

    def __init__(self, *modules):
        self._channel, other = socket.socketpair()
        # One thread per process, because waiting threads do not exist in a fork.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, __file__, str(other.fileno()), *modules]
        self._process = subprocess.Popen(command, env=environment, pass_fds=[other.fileno()])
        other.close()
        self._buffered = b""
        self._started = []
        self.ended = {}

    def start(self, arguments, environment, output, errors=None, source=None, filters=()):
        """Runs the script ``arguments[0]``, or ``source``. ``output``, ``errors``: files for its
        output; the default for errors is ``output``. ``filters``: names of warnings that are
        errors."""
        asked = {
            "arguments": [str(argument) for argument in arguments],
            "environment": dict(environment),
            "output": str(output),
            "errors": str(errors or output),
            "source": source,
            "filters": list(filters),
        }
        self._channel.sendall(json.dumps(asked).encode() + b"\n")
        while not self._started:
            self.receive(1.0)
        return Forked(self, self._started.pop())

    def receive(self, seconds):
        """Receives messages of the program, and waits for them for this long."""
        while select.select([self._channel], [], [], seconds)[0]:
            received = self._channel.recv(1 << 16)
            if not received:
                raise AssertionError(f"the program that starts scripts has ended: {self._process.wait()}")
            *lines, self._buffered = (self._buffered + received).split(b"\n")
            for line in lines:
                pid, code = json.loads(line)
                if code is None:
                    self._started.append(pid)
                else:
                    self.ended[pid] = code
            seconds = 0

    def close(self):
        """Kills the processes that still run."""
        # A close is not enough: a process that a test forked, such as one of a DataLoader, has a
        # copy of this socket.
        self._channel.shutdown(socket.SHUT_RDWR)
        self._channel.close()
        self._process.wait(60)


def starts_scripts(*modules):
    """A fixture: the starter of a whole run of tests, with which each World starts its workers."""
    from world import World

    # A shell that runs the tests in the background makes them ignore Ctrl-C, and their child
    # processes, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    World.starter = Starter(*modules)
    yield World.starter
    World.starter.close()


def serve(channel, modules):
    """Forks for each request. Returns the request in the new process. Ends when the tests have
    ended."""
    for name in [*MODULES, *modules]:
        __import__(name)
    # The garbage collector of a script would touch, and so copy, all memory of these modules.
    gc.freeze()
    running, buffered = set(), b""
    ends, wakes = os.pipe()
    for descriptor in (ends, wakes):
        os.set_blocking(descriptor, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        ready = select.select([channel, ends], [], [])[0]
        if ends in ready:
            os.read(ends, 1 << 16)
        while running and (found := os.waitpid(-1, os.WNOHANG))[0]:
            running.discard(found[0])
            send(channel, found[0], os.waitstatus_to_exitcode(found[1]))
        if channel not in ready:
            continue
        received = channel.recv(1 << 20)
        if not received:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            os._exit(0)
        *lines, buffered = (buffered + received).split(b"\n")
        for line in lines:
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                for descriptor in (ends, wakes):
                    os.close(descriptor)
                channel.close()
                return json.loads(line)
            running.add(pid)
            send(channel, pid, None)


def send(channel, *words):
    channel.sendall(json.dumps(words).encode() + b"\n")


def become(asked):
    """Makes this process like one that Python has started with the script."""
    os.environ.clear()
    os.environ.update(asked["environment"])
    for path, descriptor in ((asked["output"], 1), (asked["errors"], 2)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdout.reconfigure(line_buffering=True)
    for name in asked["filters"]:
        warnings.filterwarnings("error", category=getattr(builtins, name))
    source, sys.argv = asked["source"], asked["arguments"]
    sys.path[0] = "" if source is not None else os.path.dirname(sys.argv[0])
    if source is not None:
        sys.argv.insert(0, "-c")
        before.append(sys.modules["__main__"])
        sys.modules["__main__"] = types.ModuleType("__main__")


if __name__ == "__main__":
    asked = serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
    become(asked)
    # Run the script here, so that an exception ends the interpreter as in any script.
    if asked["source"] is None:
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        exec(compile(asked["source"], "<string>", "exec"), sys.modules["__main__"].__dict__)
