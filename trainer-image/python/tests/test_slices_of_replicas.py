"""Steps with slices of replicas: bits do not depend on the number of replicas."""

import re

import pytest
from conftest import difference, load
from replicas import ReplicaWorld
from test_slices import differing

STEPS = 9


def trained(directory, replicas, variables, *, size=2, fault=None):
    """The weights after a training, and the losses that process 0 has printed. ``fault``: of a
    process of replica 0, which another one replaces."""
    with ReplicaWorld(directory, "sharded.py", STEPS, directory / "weights", size=size, variables=variables) as world:
        begun = world.begin_replicas(replicas, fault=fault, doomed=(0, int((fault or "0")[0])))
        if fault is not None:
            begun = world.replace(begun)
        world.end_replicas(begun)
        said = begun[0].processes[0].log.read_text()
    return load(directory / "weights"), re.findall("^(?:step \\d+|evaluated after \\d+): .*$", said, re.MULTILINE)


@pytest.fixture(scope="module")
def of_one_replica(tmp_path_factory):
    """The result of one replica of two processes."""
    known = {}

    def result(**variables):
        key = tuple(variables.items())
        if key not in known:
            known[key] = trained(tmp_path_factory.mktemp("one"), 1, variables)
        return known[key]

    return result


@pytest.mark.parametrize("variables", [{"SLICES": "6", "EVALUATE": "4"}, {"SLICES": "4", "SGD": "1", "PARALLEL": "tp"}], ids=str)
def test_bits_do_not_depend_on_the_number_of_replicas(tmp_path, of_one_replica, variables):
    (weights, said), (own, own_said) = of_one_replica(**variables), trained(tmp_path, 2, variables)
    assert differing(weights, own) == [] and said == own_said and len(said) >= STEPS


def test_killed_replica_does_not_change_bits(tmp_path, of_one_replica):
    weights, _ = of_one_replica(SLICES="6", EVALUATE="4")
    assert differing(weights, trained(tmp_path, 2, {"SLICES": "6", "EVALUATE": "4"}, fault="1:5:Backward")[0]) == []


def test_slices_of_replicas_train_to_the_weights_of_the_batch(tmp_path, of_one_replica):
    (weights, _), (own, _) = of_one_replica(SLICES="4", SGD="1", PARALLEL="tp"), trained(tmp_path, 1, {"SGD": "1", "PARALLEL": "tp"}, size=1)
    assert difference(own, weights) <= 1e-12
