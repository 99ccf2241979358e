#!/usr/bin/env python3
"""Writes images of shapes, 32x32 pixels, to a directory per class below DIR/shapes/{train,val}.

usage: examples/data/make_shapes.py DIR [IMAGES_PER_CLASS]

Each image has one bright shape at a random place, of a random size, angle and color, on a dark and
noisy ground. One image in five is for validation. The same arguments give the same images.
"""
import math
import pathlib
import random
import struct
import sys
import zlib

SIZE = 32
# Each function returns whether a point belongs to the shape. The shape is centered at the origin
# and has a radius of about 1.
SHAPES = {
    "cross": lambda x, y: min(abs(x), abs(y)) < 0.3 and max(abs(x), abs(y)) < 1.0,
    "disc": lambda x, y: math.hypot(x, y) < 0.9,
    "frame": lambda x, y: 0.55 < max(abs(x), abs(y)) < 0.9,
    "ring": lambda x, y: 0.55 < math.hypot(x, y) < 1.0,
    "square": lambda x, y: max(abs(x), abs(y)) < 0.8,
    "triangle": lambda x, y: -0.6 < y < 1.0 - 1.8 * abs(x),
}


def color(lowest, highest):
    return [random.randint(lowest, highest) for _ in range(3)]


def image(inside):
    """Draws an image at random. Each returned row has three bytes per pixel."""
    size, angle = random.uniform(8, 13), random.uniform(0, 2 * math.pi)
    left, top = (random.uniform(size, SIZE - size) for _ in range(2))
    ground, shape = color(0, 90), color(165, 255)
    cos, sin = math.cos(angle) / size, math.sin(angle) / size
    rows = []
    for row in range(SIZE):
        pixels = bytearray()
        for column in range(SIZE):
            x, y = column + 0.5 - left, row + 0.5 - top
            found = shape if inside(x * cos + y * sin, y * cos - x * sin) else ground
            noisy = (round(value + random.gauss(0, 12)) for value in found)
            pixels += bytes(max(0, min(255, value)) for value in noisy)
        rows.append(bytes(pixels))
    return rows


def png(rows):
    """Encodes an image as PNG (RFC 2083): 8 bits, RGB, no filter."""

    def chunk(kind, data):
        checksum = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", SIZE, SIZE, 8, 2, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows)))
    return b"\x89PNG\r\n\x1a\n" + header + data + chunk(b"IEND", b"")


if len(sys.argv) not in (2, 3):
    sys.exit(__doc__)
root = pathlib.Path(sys.argv[1]) / "shapes"
num_images = int(sys.argv[2]) if len(sys.argv) == 3 else 400
random.seed(1)
for name, inside in SHAPES.items():
    for number in range(num_images):
        directory = root / ("val" if number % 5 == 4 else "train") / name
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{number:04}.png").write_bytes(png(image(inside)))
print(f"{len(SHAPES) * num_images} images of {len(SHAPES)} classes are in {root}")
