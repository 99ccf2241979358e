"""Errors of the script, and ranks that differ."""

import pathlib
import re

import pytest
from conftest import ROUNDING, STEPS, difference, load
from world import World, until


@pytest.mark.parametrize(
    ("workers", "rank", "whose"),
    [(2, 1, "ranks 0 and 1 differ; there is no majority"), (3, 0, "rank 0 are not those of rank 1 and of most ranks")],
)
def test_gradients_with_one_different_bit_are_not_committed(tmp_path, undisturbed, workers, rank, whose):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights", variables={"CUT_OFF_AT": f"{rank}:1:31"}) as world:
        workers = world.begin(workers)
        for worker in workers:
            until("the generation is lost", lambda worker=worker: worker.status().get("phase") == "Stranded")
            assert world.step(worker) == 30
            words = f"after their sum the gradients of {whose}: a collective was cut off, or a device computes wrong"
            assert words in worker.log.read_text()
        world.form(workers)
        world.ends(workers)
    assert difference(undisturbed(STEPS), load(tmp_path / "weights")) <= ROUNDING


def test_script_error_in_rh_join_is_in_the_termination_message(tmp_path):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights", variables={"NO_STATE": "1"}) as world:
        worker = world.start(0)
        world.ends([worker], 1)
        words = worker.words()
        assert words["reason"] == "Crashed" and "ValueError: invalid literal" in words["message"], words


def test_step_that_fails_in_each_generation_ends_all_ranks(tmp_path):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights", variables={"FAIL_AT": "7"}) as world:
        workers = world.begin(2)
        for _ in range(4):
            for worker in workers:
                def is_lost(worker=worker):
                    status = worker.status()
                    return (status.get("phase"), status.get("generation")) == ("Stranded", world.generation)

                until("the generation is lost", is_lost)
            world.form(workers)
        world.ends(workers, 1)
        message = workers[0].words()["message"]
        assert "step 7 fails with the same error in each generation: RuntimeError: a type that the group" in message, message


def test_bug_on_one_rank_ends_only_that_rank(tmp_path, undisturbed):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights", variables={"RAISE_AT": "1:31"}) as world:
        workers = world.begin(2)
        world.ends([workers[1]], 1)
        words = workers[1].words()
        assert words["reason"] == "Crashed" and words["step"] == 30, words
        lines = (pathlib.Path(__file__).parent / "scripts" / "train.py").read_text().splitlines()
        line = next(number for number, text in enumerate(lines, 1) if "a bug of the script" in text)
        assert words["message"] == f"ValueError: a bug of the script (train.py:{line})", words
        log = workers[1].log.read_text()
        assert "Traceback (most recent call last)" in log and "\nValueError: a bug of the script" in log, log
        world.form([workers[0]])
        world.ends([workers[0]])
    assert difference(undisturbed(STEPS), load(tmp_path / "weights")) <= ROUNDING


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("SAMPLES", "400", "rank 1 has other samples of the data set than rank 0: 400, not 500"),
        ("WIDTH", "16", "rank 1 has other tensors than rank 0: model.0.weight [16, 8] of F32, not model.0.weight [32, 8] of F32"),
    ],
)
def test_different_ranks_report_what_differs(tmp_path, variable, value, words):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights") as world:
        workers = [world.start(0), world.start(1, **{variable: value})]
        world.prepared(workers)
        world.form(workers)
        world.ends([workers[1]], 64)
        assert words in workers[1].words()["message"]
        assert not workers[0].is_gone()


def test_sys_exit_before_the_last_step_is_a_failure(tmp_path):
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights", variables={"EXIT_AT": "0:7"}) as world:
        workers = world.begin(1)
        world.ends(workers, 64)
        assert "sys.exit() before its last step" in workers[0].words()["message"]


def test_different_states_are_not_saved_and_name_the_tensor(tmp_path):
    # Only rank 1 changes a weight after step 5. The next checkpoint is of step 8.
    with World(tmp_path, "train.py", STEPS, tmp_path / "weights", checkpoints=True, every_steps=4, variables={"FLIP_AT": "1:5"}) as world:
        world.slow(100)
        workers = world.begin(2)
        world.ends(workers, 64)
        said = [worker.words()["message"] for worker in workers]
        saved = [path.name for path in (world.state / "checkpoints").glob("gen-*-step-*")]
    # A save that is due while the previous save is running is skipped.
    found = [re.search(r"the replicas differ after step (\d+): model.0.weight of ranks 0 and 1 differ; there is no majority", words) for words in said]
    assert all(found) and int(found[0][1]) >= 8, said
    assert all(int(name.rpartition("-")[2]) < 8 for name in saved if not name.endswith("partial")), saved
