"""Images per second of one core: ours and torchvision's, one after the other, from the same files."""
import pathlib
import statistics
import subprocess
from typing import NamedTuple

PEER = pathlib.Path(__file__).parent.parent / "data" / "peer.py"
NUM_IMAGES = 512


class Images(NamedTuple):
    """Images per second. `bytes`: normalized later, on the device."""

    floats: float
    bytes: float
    peer: float


def measure(decoder, python, directory, rounds):
    """Medians of some rounds."""
    subprocess.run([python, PEER, "make", directory, str(NUM_IMAGES)], check=True)
    found = []
    for _ in range(rounds):
        floats, as_bytes = rows([decoder, directory, "1"])
        (peer,) = rows([python, PEER, "measure", directory, "1"])
        found.append((floats, as_bytes, peer))
    return Images(*map(statistics.median, zip(*found)))


def rows(command):
    """The last column of each row of the table that a program prints."""
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [float(line.split("|")[-2]) for line in output.splitlines() if line.startswith("|")]
