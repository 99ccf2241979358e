"""Gradient scalers in replicas: all processes skip a step, or none does."""

import json

import pytest
from conftest import difference, load
from replicas import ReplicaWorld

STEPS = 12
ROUNDING = 1e-12


def trained(directory, script, size, replicas, variables):
    """Weights, last lines and skipped steps of a training."""
    directory.mkdir()
    with ReplicaWorld(directory, script, STEPS, "weights", checkpoints=True, every_steps=5, size=size, variables=variables) as world:
        begun = world.begin_replicas(replicas)
        world.end_replicas(begun)
    scales = {
        line for replica in begun for process in replica.processes
        for line in process.log.read_text().splitlines() if line.startswith("scale")
    }
    ledger = (world.state / "ledger" / "gen-0000000001.jsonl").read_text().splitlines()
    skipped = [line["step"] for line in map(json.loads, ledger) if line.get("skipped")]
    return load(world.state / "weights"), scales, skipped


@pytest.mark.parametrize(
    ("script", "variables"),
    [
        # With a schedule that steps as often as the optimizer.
        ("sharded.py", {"SGD": "1"}),
        # Whole tensors beside sharded ones.
        ("sharded.py", {"SGD": "1", "PARALLEL": "tp"}),
        # The first stage does not know the loss, and alone has the infinite gradient.
        ("pipeline.py", {"CLIP": "0.3"}),
    ],
    ids=["fsdp", "tp", "pp"],
)
def test_infinite_gradient_in_one_process_skips_the_step(tmp_path, script, variables):
    variables = {**variables, "SCALE": "inf"}
    weights, scale, skipped = trained(tmp_path / "alone", script, 1, 1, variables)
    others, scales, skipped_by_all = trained(tmp_path / "replicas", script, 2, 2, variables)
    assert skipped == skipped_by_all == [4, 9]
    assert scales == scale and len(scales) == 1
    assert difference(weights, others) <= ROUNDING
