"""Evaluations that the ranks do not begin or end together, and metrics that differ between them: no
worker is lost, and the training goes to the same weights."""

import pytest
from conftest import HERE, Result
from world import World


@pytest.mark.parametrize("uses", ["random loss", "random", "random processes"])
def test_random_numbers_of_an_evaluation_depend_on_no_worker(tmp_path, uses):
    losses = []
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        with World(tmp_path / str(number), HERE / "scripts" / "callbacks.py", tmp_path / str(number) / "out", *uses.split()) as world:
            world.ends(world.begin(number))
        losses.append(Result(world.dir / "out").logged("eval_loss"))
    assert losses[0] == losses[1] and list(losses[0]) == [3, 6]
