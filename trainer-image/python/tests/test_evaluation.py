"""The steps after which evaluations are due."""

import pytest
import roundhouse as rh
from roundhouse import errors
from roundhouse.data import Sampler
from roundhouse.evaluation import Evaluation
from small_script import DATA, loss_of


def test_evaluation_is_due_by_epochs_or_steps_and_at_the_end():
    sampler = Sampler(10, 4, epochs=3)

    def steps(**every):
        evaluation = Evaluation([], dict, **every)
        places = enumerate([0, 4, 8, 10, 14, 18, 20, 24, 28, 30])
        return [step for step, samples in places if evaluation.is_due(step, samples, 0, sampler)]

    assert steps() == [3, 6, 9]
    assert steps(every_epochs=2) == [6, 9]
    assert steps(every_epochs=0, every_steps=4) == [4, 8, 9]
    assert steps(every_epochs=2, every_steps=4) == [4, 6, 8, 9]
    assert not Evaluation([], dict, every_steps=4).is_due(4, 14, 14, sampler)
    with pytest.raises(errors.ConfigError, match="at least 1"):
        Evaluation([], dict, every_steps=0)


def test_evaluation_may_be_due_by_steps():
    sampler = Sampler(40, 8, steps=12)
    every = rh.Evaluation(DATA, lambda batch: {"loss": 0.0}, every_epochs=0, every_steps=3)
    due = [step for step in range(13) if every.is_due(step, 8 * step, 0, sampler)]
    assert due == [3, 6, 9, 12] and not every.is_due(6, 48, 48, sampler)
    epochs = rh.Evaluation(DATA, lambda batch: {"loss": 0.0}, every_epochs=1)
    assert [step for step in range(13) if epochs.is_due(step, 8 * step, 0, sampler)] == [5, 10, 12]


def test_evaluations_of_a_list_are_due_together(parts):
    one, other = (rh.Evaluation(DATA, lambda batch: {"loss": 0.0}, every_steps=every) for every in (3, 4))
    with rh.join(state=parts.state()) as job:
        sampler = job.sampler(40, 8, steps=1)
        for wrong, words in (([one, other], "need the same every_epochs and every_steps"), (lambda: 1, "give rh.Evaluation")):
            with pytest.raises(rh.ConfigError, match=words):
                job.steps(DATA, sampler, evaluation=wrong)
        for batch in job.steps(DATA, sampler, evaluation=[one, one]):
            loss = loss_of(job.model(parts.head)(job.model(parts.body)(batch.x)), batch.y)
            loss.backward()
            job.commit(loss, parts.both)
