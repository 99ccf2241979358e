"""What a script does after ``fit``: checkpoints are written although rank 0 is lost."""

import pytest
import torch
from conftest import HERE
from roundhouse.lightning import Elastic
from small_module import trainer, weights_after
from world import World, until

BEGIN = f"""
import os, pathlib, sys, time
sys.path.insert(0, {str(HERE)!r})
from roundhouse.lightning import Elastic
from small_module import trainer, weights_after

OUT = pathlib.Path(__file__).parent / "out"


def die(*_, **__):
    os.kill(os.getpid(), 9)


def wait_for(file):
    while not file.exists():
        time.sleep(0.02)


made = trainer(OUT, strategy=Elastic(global_batch_size=5))
weights_after(made)
if os.environ.get("DIES"):
    made.strategy.checkpoint_io.save_checkpoint = die
"""
SAVE = "made.save_checkpoint(OUT / 'final.ckpt')"


def script(directory, *lines):
    file = directory / "script.py"
    file.write_text("\n".join([BEGIN, *lines]))
    return World(directory, file)


def check(directory):
    """Compares the file with the weights of one process."""
    wanted = weights_after(trainer(directory / "alone", strategy=Elastic(global_batch_size=5)))
    saved = torch.load(directory / "out" / "final.ckpt", weights_only=False)["state_dict"]["layer.weight"]
    assert torch.allclose(saved, wanted, rtol=0, atol=1e-12)


# The ranks of the next generation: the worker that stays, or a new one before or after it.
@pytest.mark.parametrize("place", [None, 0, 1])
def test_checkpoint_is_saved_if_rank_0_is_killed_in_the_save(tmp_path, place):
    with script(tmp_path, SAVE) as world:
        workers = [world.start(0, DIES="1"), world.start(1)]
        world.prepared(workers)
        world.form(workers)
        left = world.end_without_first(workers, place)
        assert [worker.status()["phase"] for worker in left] == ["Done"] * len(left)
    check(tmp_path)


def test_checkpoint_that_rank_0_saves_alone_holds_up_no_rank(tmp_path):
    with script(tmp_path, "if made.strategy.job.rank == 0:", "    wait_for(OUT.parent / 'ended')", f"    {SAVE}") as world:
        workers = world.begin(2)
        world.ends(workers[1:])
        (tmp_path / "ended").touch()
        world.ends(workers[:1])
    check(tmp_path)


LOOP = f"""
import os, pathlib, sys
sys.path.insert(0, {str(HERE)!r})
import lightning
import torch
from roundhouse.lightning import ElasticFabric
from small_module import Tiny, loader

OUT = pathlib.Path(__file__).parent / "out"
fabric = lightning.Fabric(accelerator="cpu", strategy=ElasticFabric(global_batch_size=5))
layer = Tiny().layer
model, optimizer = fabric.setup(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
batches = fabric.setup_dataloaders(loader())
for _ in fabric.strategy.epochs(2):
    for batch in batches:
        fabric.backward(torch.nn.functional.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step()
        optimizer.zero_grad()
if os.environ.get("DIES"):
    fabric.strategy.checkpoint_io.save_checkpoint = lambda *_, **__: os.kill(os.getpid(), 9)
fabric.save(OUT / "final.ckpt", {{"state_dict": {{"layer.weight": layer.weight}}}})
"""


def test_state_of_a_loop_is_saved_if_rank_0_is_killed(tmp_path):
    file = tmp_path / "script.py"
    file.write_text(LOOP)
    with World(tmp_path, file) as world:
        workers = [world.start(0, DIES="1"), world.start(1)]
        world.prepared(workers)
        world.form(workers)
        until("rank 0 is killed", workers[0].is_gone)
        world.form(workers[1:])
        world.ends(workers[1:])
    check(tmp_path)
