"""The sampler: the samples of each step and rank."""

import pytest
import roundhouse as rh
import torch
from roundhouse import errors
from roundhouse._native import SampleSchedule
from roundhouse.data import Loader, Sampler
from small_script import DATA, loss_of


def test_sample_order_equals_the_built_in_trainer():
    # trainer-image/elastic/src/permutation.rs contains the same numbers.
    schedule = SampleSchedule(10, 4, epochs=2, seed=7)
    assert schedule.samples(0, 0, 10) == GOLDEN[0]
    assert schedule.samples(1, 0, 10) == GOLDEN[1]


GOLDEN = [[4, 3, 9, 7, 1, 0, 6, 2, 5, 8], [6, 1, 8, 0, 5, 4, 9, 3, 7, 2]]


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_every_sample_is_used_once_per_epoch(world_size):
    sampler = Sampler(53, 8, epochs=3, seed=1)
    seen, steps, samples = {0: [], 1: [], 2: []}, 0, 0
    while (first := sampler.plan(steps, samples, (1, 0, world_size))) is not None:
        for rank in range(world_size):
            part = sampler.plan(steps, samples, (1, rank, world_size))
            seen[part.epoch].extend(part.indices)
        steps, samples = steps + 1, samples + first.global_size
    assert steps == sampler.total_steps == 21
    assert all(sorted(indices) == list(range(53)) for indices in seen.values())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": 0}, "steps is 0; it has to be at least 1"),
        ({"epochs": 0}, "epochs is 0; it has to be at least 1"),
        ({"epochs": 1, "seed": -1}, "seed is -1; it has to be from 0"),
        ({"epochs": 1, "seed": 2**64}, "it has to be from 0"),
    ],
)
def test_sampler_refuses_invalid_numbers(options, words):
    with pytest.raises(errors.ConfigError, match=words):
        Sampler(40, 8, **options)


def test_drop_last_leaves_out_other_samples_in_each_epoch():
    sampler = Sampler(10, 4, epochs=6, seed=3, drop_last=True)
    steps = [sampler.plan(number, 4 * number, (1, 0, 1)) for number in range(12)]
    assert sampler.plan(12, 48, (1, 0, 1)) is None and sampler.total_steps == 12
    assert all(step.size == 4 for step in steps)
    assert [step.ends_epoch for step in steps] == [False, True] * 6
    used = [set(first.indices) | set(second.indices) for first, second in zip(steps[::2], steps[1::2])]
    assert all(len(one) == 8 and one <= set(range(10)) for one in used)
    assert len({frozenset(one) for one in used}) > 1
    # The order is that of the whole data set.
    whole = Sampler(10, 4, epochs=6, seed=3)
    assert steps[0].indices == whole.plan(0, 0, (1, 0, 1)).indices
    with pytest.raises(rh.ConfigError, match="drop_last belongs to job.sampler"):
        Loader(DATA, Sampler(40, 8, epochs=1), drop_last=True)


def test_sampler_before_the_join_knows_the_number_of_steps(parts):
    sampler = rh.Sampler(len(DATA), 16, epochs=2, seed=3)
    schedule = torch.optim.lr_scheduler.LinearLR(parts.first, 1.0, 0.0, total_iters=sampler.total_steps)
    with rh.join(state=parts.state(schedule=schedule)) as job:
        for batch in job.steps(DATA, sampler):
            loss = loss_of(job.model(parts.head)(job.model(parts.body)(batch.x)), batch.y)
            loss.backward()
            job.commit(loss, parts.both, schedule)
    assert job.steps_done == sampler.total_steps == 6 and schedule.get_last_lr() == [0.0]


@pytest.mark.parametrize(("numbers", "drop_last", "steps"), [((10, 4), False, 3), ((10, 4), True, 2), ((8, 4), True, 2), ((3, 4), True, 1)])
def test_steps_per_epoch_are_those_of_the_sampler(numbers, drop_last, steps):
    assert rh.steps_per_epoch(*numbers, drop_last=drop_last) == steps
    assert Sampler(*numbers, epochs=7, drop_last=drop_last).total_steps == 7 * steps


def test_steps_per_epoch_refuse_an_empty_data_set():
    with pytest.raises(rh.ConfigError, match="num_samples is 0"):
        rh.steps_per_epoch(0, 4)
