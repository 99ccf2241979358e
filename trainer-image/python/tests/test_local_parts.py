"""Which bytes of a tensor a process has."""

import itertools
import random

import pytest
import torch
from roundhouse.local_parts import runs_of


def bytes_of_runs(runs):
    return [at for start, length, count, stride in runs for run in range(count) for at in range(start + run * stride, start + run * stride + length)]


@pytest.mark.parametrize("seed", range(40))
def test_runs_are_the_bytes_of_the_block_in_its_order(seed):
    numbers = random.Random(seed)
    whole = [numbers.randint(1, 4) for _ in range(numbers.randint(1, 4))]
    block = [numbers.randint(1, size) for size in whole]
    offset = [numbers.randint(0, size - own) for size, own in zip(whole, block)]
    size = numbers.choice([1, 2, 8])
    places = torch.arange(torch.Size(whole).numel()).reshape(whole)
    inside = places[tuple(slice(at, at + own) for at, own in zip(offset, block))].flatten().tolist()
    expected = list(itertools.chain.from_iterable(range(place * size, (place + 1) * size) for place in inside))
    assert bytes_of_runs(runs_of(whole, block, offset, size)) == expected


def test_rows_and_columns_of_a_matrix_are_one_row_of_runs():
    assert runs_of([6, 4], [2, 4], [2, 0], 8) == [(64, 64, 1, 64)]
    assert runs_of([6, 4], [6, 2], [0, 2], 8) == [(16, 16, 6, 32)]
    assert runs_of([6, 4], [2, 2], [4, 2], 1) == [(18, 2, 2, 4)]
    assert runs_of([6, 4], [0, 4], [6, 0], 8) == []
    assert runs_of([], [], [], 8) == [(0, 8, 1, 8)]
