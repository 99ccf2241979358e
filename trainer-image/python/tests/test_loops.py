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


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), 10**9])
def test_patience_has_an_upper_bound(parts, seconds):
    def body(job, value):
        with pytest.raises(rh.ConfigError, match="give a number from 1 to"):
            job.alone(lambda: 1, seconds=seconds)
        job.commit(value, parts.both)

    train(parts, body)
