"""Steps whose samples have different weights, and ranks that wait for a rank that works alone."""

import torch
from conftest import load
from world import World


def trained(directory, workers, **variables):
    directory.mkdir()
    with World(directory, "tokens.py", directory / "weights", variables=variables) as world:
        started = world.begin(workers)
        world.ends(started)
        said = [worker.log.read_text() for worker in started]
    return load(directory / "weights")["weight"], said


def test_ranks_with_different_token_counts_equal_one_process(tmp_path):
    one, _ = trained(tmp_path / "1", 1)
    three, _ = trained(tmp_path / "3", 3)
    assert torch.allclose(one, three, rtol=0, atol=1e-12), (one - three).abs().max()


def test_rank_may_work_alone_longer_than_the_timeout(tmp_path):
    waits = {"ROUNDHOUSE_COLLECTIVE_TIMEOUT_SECONDS": "2", "ROUNDHOUSE_FIRST_STEP_TIMEOUT_SECONDS": "60"}
    _, said = trained(tmp_path / "2", 2, ALONE="6", **waits)
    assert all("generation 1 after the wait" in words for words in said), said
