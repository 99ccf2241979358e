"""Steps with slices: weights, the optimizer's state, losses, norms and evaluations are equal bit
for bit for every number of ranks and every history of the job."""

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


@pytest.mark.parametrize(
    ("ranks", "settings"),
    [(3, {"SLICES": "4", "SGD": "yes"}), (2, {"SLICES": "6"}), (3, {"SLICES": "6"}), (3, {"SLICES": "2", "WEIGHS": "yes"})],
    ids=str,
)
def test_bits_do_not_depend_on_the_number_of_ranks(tmp_path, of_one_rank, settings, ranks):
    assert differing(of_one_rank(**settings), trained(tmp_path, ranks, settings)) == []


def test_deaths_and_newcomers_do_not_change_bits(tmp_path, of_one_rank):
    with World(tmp_path, "slices.py", STEPS, tmp_path / "state", variables={"SLICES": "6"}) as world:
        # Rank 2 has the slices 4 and 5 of a step of 64 samples, and rank 1 of two ranks 3 to 5.
        workers = [world.start(0, ROUNDHOUSE_FAULT="0:22:Commit"), world.start(1), world.start(2, KILL_AT="2:5:5")]
        world.prepared(workers)
        world.form(workers, others_leave=False)
        for step, variables in [(5, {"ROUNDHOUSE_FAULT": "2:11:Backward"}), (11, {"KILL_AT": "2:17:4"}), (17, {"ROUNDHOUSE_FAULT": "1:26:Update"})]:
            until("a rank is killed", workers[2].is_gone)
            workers[2] = world.start(2, **variables)
            world.prepared(workers[2:])
            # Two ranks train for some steps, before the newcomer joins them.
            world.slow(300)
            world.form(workers[:2], others_leave=False)
            world.reach(workers[:2], step + 1)
            world.form(workers)
            world.slow(0)
        until("rank 0 is killed", workers[0].is_gone)
        world.form(workers[1:])
        until("the last newcomer is killed", workers[2].is_gone)
        world.form(workers[1:2])
        world.ends(workers[1:2])
    assert differing(of_one_rank(SLICES="6"), load(tmp_path / "state")) == []


def test_resumed_training_has_the_same_bits(tmp_path, of_one_rank):
    variables = {"SLICES": "6", "LOADERS": "1", "KILL_AT": "1:18:3"}
    with World(tmp_path, "slices.py", STEPS, "state", checkpoints=True, every_steps=5, variables=variables) as world:
        workers = world.begin(2)
        until("rank 1 is killed", workers[1].is_gone)
        workers[0].kill()
        until("rank 0 is gone", workers[0].is_gone)
        later = [world.start(index, KILL_AT="") for index in range(3)]
        world.prepared(later)
        world.form(later)
        world.ends(later)
        log = later[0].log.read_text()
    assert "rank 0: step 1," not in log and "rank 0: step 16, slice 0" in log
    assert differing(of_one_rank(SLICES="6"), load(world.state / "state")) == []
