"""Loaders: workers, shares, streams, and errors of data sets."""

import collections
import ctypes
import multiprocessing
import os
import signal

import pytest
import roundhouse as rh
import torch
from roundhouse import errors
from roundhouse.data import Batch, Loader, Sampler
from roundhouse.ending import explained
from roundhouse.evaluation import Evaluation
from roundhouse.streams import Shard


class Located:
    """Each sample is its index and the process that reads it."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.tensor([index, os.getpid()])


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_keeps_its_workers_when_the_share_changes(workers):
    sampler = Sampler(40, 10, epochs=2, seed=1)
    loader = Loader(Located(), sampler, num_workers=workers)
    samples, processes = 0, set()
    for number, place in enumerate([(1, 0, 1), (1, 0, 1), (2, 1, 2), (2, 1, 2), (3, 0, 3), (3, 0, 3), (4, 0, 1), (4, 0, 1)]):
        wanted = sampler.plan(number, samples, place)
        read = loader.load(wanted, samples)
        assert read[:, 0].tolist() == list(wanted.indices)
        processes.update(read[:, 1].tolist())
        samples += wanted.global_size
    loader.close()
    assert len(processes) == max(workers, 1) and (os.getpid() in processes) == (workers == 0)


def test_rank_without_samples_reads_one_that_does_not_count():
    sampler = Sampler(6, 2, epochs=1)
    steps = [sampler.plan(0, 0, (1, rank, 3)) for rank in range(3)]
    assert sorted(step.size for step in steps) == [0, 1, 1]
    empty = next(step for step in steps if step.size == 0)
    loader = Loader([torch.tensor(index) for index in range(6)], sampler)
    assert loader.load(empty, 0).shape == (1,)


def noisy(epoch):
    """A stream with random numbers, whose samples contain their origin."""
    return (torch.tensor([epoch, index, torch.rand(()).item()]) for index in range(41))


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_divide_a_stream_for_any_world_size(workers):
    whole = {}
    for world_size in [1, 3]:
        read = []
        for rank in range(world_size):
            # A prime, so the last step of each epoch has only one sample, and some ranks have none.
            sampler = Sampler(41, 8, epochs=2, seed=1, in_order=True)
            loader = Loader(Shard(noisy, 41), sampler, num_workers=workers)
            samples = 0
            for number in range(sampler.total_steps):
                step = sampler.plan(number, samples, (1, rank, world_size))
                read.extend(loader.load(step, samples)[: step.size])
                samples += step.global_size
            loader.close()
        whole[world_size] = sorted(tuple(sample.tolist()) for sample in read)
    assert [sample[:2] for sample in whole[1]] == [(epoch, index) for epoch in range(2) for index in range(41)]
    assert whole[1] == whole[3]


def test_stream_restarts_for_a_repeated_step():
    opened = []
    shard = Shard(lambda epoch: opened.append(epoch) or iter(range(10)), 10)
    assert [shard.at(0, index, None) for index in (3, 3, 7, 2)] == [3, 3, 7, 2]
    assert shard.at(1, 0, None) == 0
    assert opened == [0, 0, 1]
    with pytest.raises(errors.DataMismatch, match="ended after 10 samples of epoch 1, but job.shard_of has num_samples=10"):
        shard.at(1, 10, None)


def test_invalid_samplers_and_loaders_are_named():
    for call, words in [
        (lambda: Sampler(0, 4, epochs=1), "num_samples is 0"),
        (lambda: Sampler(4, 4), "epochs=N or steps=N"),
        (lambda: Sampler(4, 4, epochs=1, reduction="max"), "reduction"),
        (lambda: Loader([1, 2], Sampler(3, 1, epochs=1)), "has 2 samples"),
        (lambda: Loader(Shard([1, 2], 2), Sampler(2, 1, epochs=1)), "in_order=True"),
        (lambda: Loader([1, 2], Sampler(2, 1, epochs=1), shuffle=True), "shuffle is the sampler's business"),
    ]:
        with pytest.raises(errors.ConfigError, match=words):
            call()


class EndsWith:
    """Each sample is the signal that the reading process gets when its parent ends."""

    def __len__(self):
        return 4

    def __getitem__(self, _):
        number = ctypes.c_int()
        ctypes.CDLL(None).prctl(2, ctypes.byref(number))  # PR_GET_PDEATHSIG
        return number.value


def test_loader_workers_end_with_their_parent():
    sampler = Sampler(4, 4, epochs=1)
    loader = Loader(EndsWith(), sampler, num_workers=1)
    assert loader.load(sampler.plan(0, 0, (1, 0, 1)), 0).tolist() == [signal.SIGKILL] * 4
    assert len(multiprocessing.active_children()) == 1
    loader.close()
    assert not multiprocessing.active_children()
    evaluation = Evaluation(EndsWith(), lambda batch: {"loss": sum(batch)}, options={"num_workers": 1})
    assert evaluation.sums(0, 1) == {"loss": 4 * signal.SIGKILL}


def test_batch_is_moved_completely():
    pair = collections.namedtuple("pair", ["x", "y"])
    tensor = torch.ones(2)
    packed = torch.nn.utils.rnn.pack_sequence([tensor, tensor])
    encoded = collections.UserDict(ids=tensor, length=2)
    encoded.language = "en"
    batch = Batch(None, [pair(tensor, {"z": tensor}), encoded, packed, "text"], None).to("meta")
    assert type(batch[0]) is pair and batch[0].x.is_meta and batch[0].y["z"].is_meta
    assert type(batch[1]) is collections.UserDict and batch[1]["ids"].is_meta and batch[1]["length"] == 2
    assert batch[1].language == "en" and not encoded["ids"].is_meta
    assert batch[2].data.is_meta and batch[2].batch_sizes.tolist() == [2, 2] and batch[3] == "text"


class Once(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(5))

    def __len__(self):
        return 5


def test_streams_in_the_wrong_call_are_named():
    sampler = Sampler(5, 5, epochs=1)
    for dataset in (Once(), (number for number in range(5)), iter([1])):
        with pytest.raises(rh.ConfigError, match=r"give job.shard_of\(stream, num_samples=N\) in its place"):
            Loader(dataset, sampler)
    with pytest.raises(rh.ConfigError, match="makes the DataLoader itself: give it the data set"):
        Loader(torch.utils.data.DataLoader(range(5)), sampler)
    for stream in ((number for number in range(5)), iter([1]), map(int, [1])):
        with pytest.raises(rh.ConfigError, match="which can be read only once: .* give a function of the epoch"):
            Shard(stream, 5)
    with pytest.raises(rh.ConfigError, match="job.shard_of got a int, which is not iterable"):
        Shard(5, 5)
    assert Shard(Once(), 5).at(0, 3, None) == 3


@pytest.mark.parametrize("loaders", [0, 1])
def test_data_set_with_stop_iteration_is_an_error(loaders):
    class Ends(torch.utils.data.Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            return next(iter([index] if index != 33 else []))

    sampler = Sampler(40, 8, epochs=1)
    loader = Loader(Ends(), sampler, num_workers=loaders)
    with pytest.raises(RuntimeError) as raised:
        for step in range(5):
            loader.load(sampler.plan(step, 8 * step, (1, 0, 1)), 8 * step)
    assert "StopIteration" in "".join(explained(raised.value)[1:]) and "(test_loader.py:" in explained(raised.value)[1]
    loader.close()
    evaluation = rh.Evaluation(Ends(), lambda batch: {"loss": 0.0}, batch_size=8, options={"num_workers": loaders})
    with pytest.raises(RuntimeError):
        evaluation.sums(0, 1)
