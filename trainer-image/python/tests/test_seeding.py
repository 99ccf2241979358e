"""Random numbers of samples, which are functions of seed, epoch and index and do not depend on the
batch."""

import random

import numpy
import pytest
import torch
from roundhouse.data import Loader, Sampler, _Seeded
from roundhouse.seeding import mixed, seed_all
from torch.utils.data import Dataset

DRAWS = {
    "random": random.random,
    "numpy": numpy.random.random,
    "torch": lambda: float(torch.rand(())),
}


class Samples(Dataset):
    """Samples that are random numbers from an index on. It counts the reads."""

    def __init__(self, draw, first=0):
        self.draw, self.first, self.num_reads = draw, first, 0

    def __len__(self):
        return 100

    def __getitem__(self, index):
        self.num_reads += 1
        return self.draw() if index >= self.first else float(index)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_samples_draw_the_same_numbers_in_any_batch(draw):
    seeded = _Seeded(Samples(draw), seed=5)
    first = seeded.__getitems__([(0, 3), (0, 4), (0, 5)])
    assert first == seeded.__getitems__([(0, 3)]) + _Seeded(Samples(draw), seed=5).__getitems__([(0, 4), (0, 5)])
    assert first == [seeded[0, index] for index in (3, 4, 5)]
    assert len({*first, *seeded.__getitems__([(1, 3), (1, 4)])}) == 5


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_first_sample_that_draws_may_come_late(draw):
    seeded = _Seeded(Samples(draw, first=50), seed=5)
    assert seeded.__getitems__([(0, 1), (0, 2)]) == [1.0, 2.0]
    assert seeded.__getitems__([(0, 3), (0, 70)]) == [3.0, _Seeded(Samples(draw), seed=5)[0, 70]]


def test_samples_without_random_numbers_are_read_once():
    samples = Samples(random.random, first=100)
    _Seeded(samples, seed=5).__getitems__([(0, 1), (0, 2)])
    assert samples.num_reads == 2
    samples.__getitems__ = lambda indices: [-index for index in indices]
    assert _Seeded(samples, seed=5).__getitems__([(0, 1), (0, 2)]) == [-1, -2]


def test_numbers_after_different_batches_differ():
    seeded = _Seeded(Samples(random.random, first=100), seed=5)
    drawn = []
    for index in (1, 2):
        seeded.__getitems__([(0, index)])
        drawn.append([draw() for draw in DRAWS.values()])
    assert not set(drawn[0]) & set(drawn[1])


def test_seed_equals_torch_manual_seed():
    for seed in (mixed(1), mixed(2, 3)):
        seed_all(seed)
        numbers = torch.rand(3)
        torch.manual_seed(seed)
        assert torch.equal(numbers, torch.rand(3))


def test_collate_function_draws_new_numbers_in_each_batch():
    def collate(samples):
        return float(torch.rand(()))

    loader = Loader(Samples(random.random, first=100), Sampler(100, 10, epochs=1, seed=5), collate_fn=collate)
    steps = [Sampler(100, 10, epochs=1, seed=5).plan(number, 10 * number, (1, 0, 1)) for number in range(3)]
    drawn = {loader.load(step, 10 * number) for number, step in enumerate(steps)}
    assert len(drawn) == 3


def test_random_numbers_depend_on_every_part():
    assert len({mixed(1, 2, 3), mixed(1, 2, 4), mixed(1, 3, 2), mixed(2, 2, 3), mixed(1, 2)}) == 5
