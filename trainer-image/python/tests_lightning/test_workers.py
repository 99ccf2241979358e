"""Scripts in a worker: what ends the job before it trains, and a worker that is asked to leave."""

import signal

from conftest import HERE, Result
from libraries import ROUNDING, difference
from world import World

LINES = [
    "import sys",
    f"sys.path.insert(0, {str(HERE)!r})",
    "from roundhouse.lightning import Elastic",
    "from small_module import Tiny, loader, trainer, weights_after",
    "strategy = lambda: Elastic(global_batch_size=5)",
]


def script(directory, *lines):
    path = directory / "script.py"
    path.write_text("\n".join([*LINES, *lines]))
    return path


def test_refusal_before_the_job_is_joined_ends_the_job(tmp_path):
    lines = ["weights_after(trainer('out', strategy=strategy(), accumulate_grad_batches=8))"]
    with World(tmp_path, script(tmp_path, *lines)) as world:
        worker = world.start(0)
        world.ends([worker], 64)
        assert "Trainer(accumulate_grad_batches=8): the number of passes" in worker.words()["message"]


def test_refusal_in_a_step_ends_the_job_with_its_words(tmp_path):
    lines = ["Tiny.training_step = lambda *_: None", "weights_after(trainer('out', strategy=strategy()))"]
    with World(tmp_path, script(tmp_path, *lines)) as world:
        workers = world.begin(1)
        world.ends(workers, 64)
        assert "training_step has returned no loss" in workers[0].words()["message"]


def test_second_training_of_a_job_is_explained(tmp_path):
    lines = ["for _ in range(2):", "    weights_after(trainer('out', strategy=strategy()))"]
    with World(tmp_path, script(tmp_path, *lines)) as world:
        workers = world.begin(1)
        world.ends(workers, 64)
        assert "a second fit() in this process: a job is one training" in workers[0].log.read_text()


def test_workers_without_a_rank_log_nothing(tmp_path):
    lines = [
        "from lightning.pytorch.utilities.rank_zero import rank_zero_only",
        "made = trainer('out', strategy=strategy(), accelerator='auto')",
        "assert not made.is_global_zero and rank_zero_only.rank == 1 and made.world_size == 1",
        "weights_after(made)",
        "assert made.is_global_zero and rank_zero_only.rank == 0",
    ]
    with World(tmp_path, script(tmp_path, *lines)) as world:
        world.ends(world.begin(1))


def test_worker_that_is_asked_to_leave_leaves_between_steps(training, plain):
    with training("sgd") as world:
        world.slow(150)
        workers = world.begin(2)
        world.reach(workers, 4)
        # With its own handler Lightning would end the training in the next step.
        workers[1].kill(signal.SIGTERM)
        world.reach(workers, 8)
        world.form(workers[:1])
        world.ends(workers[1:], 143)
        world.slow(0)
        world.ends(workers[:1])
    assert difference(plain("sgd"), Result(world.dir / "out")) <= ROUNDING
