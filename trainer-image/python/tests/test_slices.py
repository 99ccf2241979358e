"""Steps with slices: weights, the optimizer's state, losses, norms and evaluations are equal bit for
bit for every number of ranks and every history of the job."""

import pytest
import torch
from conftest import load
from world import World, until

STEPS = 30


def trained(directory, number, variables, steps=STEPS):
    """The state after a training by this number of ranks."""
    with World(directory, "slices.py", steps, directory / "state", variables=variables) as world:
        world.ends(world.begin(number))
    return load(directory / "state")


@pytest.fixture(scope="module")
def of_one_rank(tmp_path_factory):
    """The state after a training by one process."""
    known = {}

    def state(**variables):
        key = tuple(variables.items())
        if key not in known:
            known[key] = trained(tmp_path_factory.mktemp("one"), 1, variables)
        return known[key]

    return state


def differing(left, right):
    """The names of the tensors whose bits differ."""
    assert left.keys() == right.keys()
    bits = {name: (left[name].view(-1).view(torch.uint8), right[name].view(-1).view(torch.uint8)) for name in left}
    return sorted(name for name, (one, other) in bits.items() if not torch.equal(one, other))


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("settings", [{"SLICES": "4", "SGD": "yes"}, {"SLICES": "6"}, {"SLICES": "6", "WEIGHS": "yes"}, {"SLICES": "2", "SGD": "yes"}], ids=str)
def test_bits_do_not_depend_on_the_number_of_ranks(tmp_path, of_one_rank, settings, ranks):
    assert differing(of_one_rank(**settings), trained(tmp_path, ranks, settings)) == []
