"""The ends of a script with accelerate, which has no ``with`` around its loop."""

from conftest import HERE
from world import World

BEGIN = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import torch
from roundhouse.hf import Accelerator
from small_trainer import Tiny, samples
accelerator = Accelerator(epochs=2, cpu=True)
model = Tiny()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(samples(), batch_size=5)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(accelerator.epochs_done, 2):
    for batch in loader:
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
"""


def ended(directory, lines, code):
    """Two workers that run a script, and have ended."""
    file = directory / "script.py"
    file.write_text(BEGIN + lines)
    with World(directory, file) as world:
        workers = world.begin(2)
        world.ends(workers, code)
        return workers


def test_script_without_end_training_completes_the_job(tmp_path):
    workers = ended(tmp_path, "", 0)
    assert [(worker.status()["phase"], worker.status()["step"]) for worker in workers] == [("Done", 4)] * 2


def test_script_that_exits_with_0_completes_the_job(tmp_path):
    workers = ended(tmp_path, "sys.exit()", 0)
    assert [worker.status()["phase"] for worker in workers] == ["Done", "Done"]


def test_error_of_the_script_is_its_message(tmp_path):
    workers = ended(tmp_path, "raise ValueError('the script has no disk')", 1)
    assert all("ValueError: the script has no disk" in worker.words()["message"] for worker in workers)


def test_exit_with_an_error_in_the_loop_is_no_early_end(tmp_path):
    workers = ended(tmp_path, "        if accelerator.job.steps_done == 1:\n            sys.exit(3)\n", 3)
    assert all(worker.words()["message"] == "the script has exited with 3" for worker in workers)
    assert all(worker.status()["phase"] != "Done" for worker in workers)


def test_refusal_in_the_loop_ends_the_job(tmp_path):
    workers = ended(tmp_path, "        accelerator.save_state('run')\n", 64)
    assert all("accelerator.save_state: a job writes and reads its own checkpoints" in worker.words()["message"] for worker in workers)


ALONE = """
        if accelerator.job.steps_done == 1 and accelerator.is_main_process:
            evaluated = accelerator.prepare(torch.utils.data.DataLoader(samples(), batch_size=5))
            assert len(list(evaluated)) == 2
"""


def test_evaluation_on_rank_0_alone_costs_no_worker(tmp_path):
    workers = ended(tmp_path, ALONE, 0)
    assert [(worker.status()["phase"], worker.status()["step"]) for worker in workers] == [("Done", 4)] * 2


def test_two_trainings_in_a_worker_are_refused(tmp_path):
    again = "model = Tiny()\nAccelerator(epochs=1).prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.utils.data.DataLoader(samples()))"
    workers = ended(tmp_path, f"accelerator.end_training()\n{again}", 64)
    assert all("a second train() or accelerator.prepare in this process" in worker.log.read_text() for worker in workers)
