"""Compares images per second of one core with torchvision's, in alternating runs with the same
files."""
import pathlib
import statistics
import subprocess
from typing import NamedTuple

PEER = pathlib.Path(__file__).parent.parent / "data" / "peer.py"
NUM_IMAGES = 512


class Images(NamedTuple):
    """Images per second. `bytes` are normalized later, on the device."""

    floats: float
    bytes: float
    peer: float


def measure(decoder, python, directory, rounds):
    """The medians over some rounds."""
    subprocess.run([python, PEER, "make", directory, str(NUM_IMAGES)], check=True)
    found = []
    for _ in range(rounds):
        floats, as_bytes = rows([decoder, directory, "1"])
        (peer,) = rows([python, PEER, "measure", directory, "1"])
        found.append((floats, as_bytes, peer))
    return Images(*map(statistics.median, zip(*found)))


def rows(command):
    """Runs a program that prints a table, and returns the last column of each row."""
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [float(line.split("|")[-2]) for line in output.splitlines() if line.startswith("|")]
