#!/usr/bin/env python3
"""Converts the UCI optical digits to gzipped IDX files, as MNIST is published.

    make_digits.py SOURCE [OUTPUT_DIR]

SOURCE is digits.csv.gz, or a scikit-learn wheel that holds it
(`pip download --no-deps scikit-learn`). The script scales pixels from 0..16 to 0..255. It moves
every sixth image to the test split until that has 297: the source is sorted by writer, so both
splits contain all writers. The gzip headers contain neither time nor name, so the same source and
the same zlib give the same bytes. The script needs Python 3.8 and no packages.
"""

import csv
import gzip
import io
import struct
import sys
import zipfile
import zlib
from pathlib import Path

CSV_IN_WHEEL = "sklearn/datasets/data/digits.csv.gz"
SIDE = 8
TOP = 16
NUM_SAMPLES = 1797
NUM_TEST = 297
TEST_EVERY = 6


def read_source(path):
    """Reads the rows of the source: 64 pixels and a label each."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            packed = wheel.read(CSV_IN_WHEEL)
    else:
        packed = path.read_bytes()
    text = gzip.decompress(packed).decode("ascii")
    rows = [[int(float(cell)) for cell in row] for row in csv.reader(io.StringIO(text))]
    assert len(rows) == NUM_SAMPLES, f"{len(rows)} rows, expected {NUM_SAMPLES}"
    for number, row in enumerate(rows, 1):
        assert len(row) == SIDE * SIDE + 1, f"row {number}: {len(row)} columns"
        assert all(0 <= pixel <= TOP for pixel in row[:-1]), f"row {number}: pixel out of range"
        assert 0 <= row[-1] <= 9, f"row {number}: label out of range"
    return rows


def scale(pixel):
    """Scales a pixel from 0..16 to 0..255, rounded half up."""
    return (pixel * 255 + TOP // 2) // TOP


def write_gzip(path, body):
    """Writes a gzip file whose bytes depend on the body alone."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    header = b"\x1f\x8b\x08\x00" + b"\x00" * 4 + b"\x02\xff"
    trailer = struct.pack("<II", zlib.crc32(body), len(body))
    path.write_bytes(header + packer.compress(body) + packer.flush() + trailer)


def write_split(directory, prefix, rows):
    """Writes a pair of IDX files: images (magic 0x803) and labels (magic 0x801)."""
    images = struct.pack(">IIII", 0x803, len(rows), SIDE, SIDE)
    images += bytes(scale(pixel) for row in rows for pixel in row[:-1])
    labels = struct.pack(">II", 0x801, len(rows)) + bytes(row[-1] for row in rows)
    write_gzip(directory / f"{prefix}-images-idx3-ubyte.gz", images)
    write_gzip(directory / f"{prefix}-labels-idx1-ubyte.gz", labels)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    rows = read_source(Path(sys.argv[1]))
    output = Path(sys.argv[2]) if len(sys.argv) == 3 else Path(__file__).parent / "digits"
    output.mkdir(parents=True, exist_ok=True)
    test = set(range(TEST_EVERY - 1, NUM_TEST * TEST_EVERY, TEST_EVERY))
    write_split(output, "train", [row for index, row in enumerate(rows) if index not in test])
    write_split(output, "t10k", [row for index, row in enumerate(rows) if index in test])


if __name__ == "__main__":
    main()
