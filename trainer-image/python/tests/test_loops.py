"""The length of a loop, and waits within it."""

import pytest
import roundhouse as rh
from small_script import DATA, loss_of, train


def test_length_of_a_loop_is_its_number_of_steps(parts):
    with rh.join(state=parts.state()) as job:
        sampler = job.sampler(40, 8, epochs=2)
        assert len(job.steps(DATA, sampler)) == len(job.indices(sampler)) == 10
        for batch in job.steps(DATA, sampler):
            loss = loss_of(job.model(parts.head)(job.model(parts.body)(batch.x)), batch.y)
            loss.backward()
            job.commit(loss, parts.both)
            assert len(job.steps(DATA, sampler)) == 10 - batch.step.number


def test_older_iterator_does_not_drop_a_newer_step(parts):
    def loss_of_next(iterator):
        batch = next(iterator)
        loss = loss_of(job.model(parts.head)(job.model(parts.body)(batch.x)), batch.y)
        loss.backward()
        return loss

    with rh.join(state=parts.state()) as job:
        loop = job.steps(DATA, job.sampler(40, 8, steps=2))
        older, newer = iter(loop), iter(loop)
        assert job.commit(loss_of_next(older), parts.both)
        loss = loss_of_next(newer)
        del older
        assert job.commit(loss, parts.both)
        assert next(newer, None) is None


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), 10**9])
def test_patience_has_an_upper_bound(parts, seconds):
    def body(job, value):
        with pytest.raises(rh.ConfigError, match="give a number from 1 to"):
            job.alone(lambda: 1, seconds=seconds)
        job.commit(value, parts.both)

    train(parts, body)
