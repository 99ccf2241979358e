"""What a script does after ``trainer.train()``: files are written although rank 0 is lost."""

import pytest
import torch
from conftest import HERE
from roundhouse.hf import Trainer
from safetensors.torch import load_file
from small_trainer import Tiny, arguments, samples
from world import World, until

BEGIN = f"""
import os, pathlib, sys, time
sys.path.insert(0, {str(HERE)!r})
import torch
import transformers
from roundhouse.hf import Trainer
from small_trainer import Tiny, arguments, samples

HERE = pathlib.Path(__file__).parent


class Stop(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        control.should_training_stop |= state.global_step == int(os.environ.get("STOP_AT", "0"))


def die(*_, **__):
    os.kill(os.getpid(), 9)


def wait_for(condition):
    while not condition():
        time.sleep(0.02)


args = arguments(HERE / "out", lr_scheduler_type="constant")
trainer = Trainer(model=Tiny(), args=args, train_dataset=samples(), global_batch_size=4, callbacks=[Stop()])
trainer.train()
assert not torch.distributed.is_initialized()
rank = trainer.job.rank
if os.environ.get("DIES"):
    trainer._save = die
"""
SAVE = "trainer.save_model()\n"


def script(directory, *lines):
    file = directory / "script.py"
    file.write_text("\n".join([BEGIN, *lines]))
    return World(directory, file)


def start(world, number, **variables):
    """Starts workers, of which rank 0 has more ``variables``."""
    workers = [world.start(index, **(variables if index == 0 else {})) for index in range(number)]
    world.prepared(workers)
    world.form(workers, others_leave=False)
    return workers


def check(directory, **options):
    """Compares the file with the weights of one process."""
    model, args = Tiny(), arguments(directory / "alone", lr_scheduler_type="constant", **options)
    Trainer(model=model, args=args, train_dataset=samples(), global_batch_size=4).train()
    saved = load_file(directory / "out" / "model.safetensors")
    for name, wanted in model.state_dict().items():
        assert torch.allclose(saved[name], wanted, rtol=0, atol=1e-12), name


# The ranks of the next generation: the workers that stay, or a new one before or after them.
@pytest.mark.parametrize("place", [None, 0, 2])
def test_model_is_saved_if_rank_0_is_killed_in_the_save(tmp_path, place):
    with script(tmp_path, SAVE, "trainer.save_state()") as world:
        workers = start(world, 3, DIES="1")
        left = world.end_without_first(workers, place)
        assert [worker.status()["phase"] for worker in left] == ["Done"] * len(left)
    check(tmp_path)
    assert (tmp_path / "out" / "trainer_state.json").exists()


@pytest.mark.parametrize("has_newcomer", [False, True])
def test_model_of_an_early_stop_is_saved_after_a_kill(tmp_path, has_newcomer):
    with script(tmp_path, SAVE) as world:
        world.variables["STOP_AT"] = "2"
        workers = start(world, 2, DIES="1")
        until("rank 0 is killed", workers[0].is_gone)
        left = workers[1:]
        if has_newcomer:
            left.append(world.start(0))
            world.prepared(left[1:])
        world.form(left)
        world.ends(left)
    check(tmp_path, max_steps=2)


NO_SPACE = "raise OSError(28, 'no space is left')"
WORDS = "OSError: [Errno 28] no space is left"
ERRORS = [
    ([NO_SPACE], 1, WORDS),
    # A hook of a library that replaces that of the package.
    (["sys.excepthook = sys.__excepthook__", NO_SPACE], 1, WORDS),
    (["sys.excepthook = sys.__excepthook__", "from roundhouse.errors import DataError", "raise DataError('no data')"], 65, "no data"),
    (["sys.exit(3)"], 3, "the script has exited with 3"),
    (["exit(code='no space is left')"], 1, "the script has exited with no space is left"),
]


@pytest.mark.parametrize(("ends", "code", "words"), ERRORS)
def test_error_of_rank_0_is_its_message_and_another_saves(tmp_path, ends, code, words):
    with script(tmp_path, "if os.environ.get('DIES'):", *(f"    {line}" for line in ends), SAVE) as world:
        workers = start(world, 2, DIES="1")
        world.ends(workers[:1], code)
        assert words in workers[0].words()["message"]
        world.form(workers[1:])
        world.ends(workers[1:])
    check(tmp_path)


def test_exit_that_the_script_catches_is_no_end(tmp_path):
    with script(tmp_path, "try:", "    sys.exit(3)", "except SystemExit as error:", "    assert error.code == 3", SAVE) as world:
        world.ends(start(world, 2))
    check(tmp_path)


def test_other_ranks_wait_for_no_work_of_rank_0_alone(tmp_path):
    lines = ["if rank == 0:", "    wait_for((HERE / 'ended').exists)", "    trainer.save_model()"]
    with script(tmp_path, *lines) as world:
        workers = start(world, 2)
        world.ends(workers[1:])
        status = workers[0].status()
        assert status["phase"] == "Evaluating" and status["patienceSeconds"] >= 7 * 24 * 3600
        (tmp_path / "ended").touch()
        world.ends(workers[:1])
    check(tmp_path)


@pytest.mark.parametrize("checkpoints", [False, True])
def test_lost_work_of_rank_0_alone_ends_the_others(tmp_path, checkpoints):
    # With checkpoints the ranks start again also after a complete save: rank 0 may have done more.
    lines = [SAVE, "if rank == 0:", "    die()"] if checkpoints else ["if rank == 0:", "    trainer.save_model()"]
    with script(tmp_path, *lines, "wait_for((HERE / 'gone').exists)") as world:
        if checkpoints:
            world.variables["ROUNDHOUSE_CHECKPOINT_DIR"] = str(world.state)
        workers = start(world, 2, **({} if checkpoints else {"DIES": "1"}))
        until("rank 0 is killed", workers[0].is_gone)
        (tmp_path / "gone").touch()
        world.ends(workers[1:], 75)
        assert "rank 0 was lost after the training" in workers[1].words()["message"]


def test_child_process_after_the_training_is_no_member(tmp_path):
    lines = ["if rank == 0:", "    child = os.fork()", "    if child == 0:", "        sys.exit()", "    assert os.waitpid(child, 0)[1] == 0"]
    with script(tmp_path, *lines, SAVE) as world:
        workers = start(world, 2, DIES="1")
        until("rank 0 is killed", workers[0].is_gone)
        world.form(workers[1:])
        world.ends(workers[1:])
    check(tmp_path)


CHANGES = ["trainer.model.float()", "trainer.model.layer = torch.nn.Linear(4, 3)", "with torch.no_grad(): trainer.model.layer.weight.mul_(2)"]


@pytest.mark.parametrize("change", CHANGES)
def test_changed_model_of_a_lost_save_is_computed_again(tmp_path, change):
    # A new rank would get the changed model, and change it again.
    with script(tmp_path, change, SAVE) as world:
        workers = start(world, 2, DIES="1")
        world.ends(workers[1:], 75)
        assert "the script has changed the model since" in workers[1].words()["message"]


RETRY = """
save, errors = trainer._save, [OSError(5, "the volume does not answer")] if rank == 0 else []


def save_later(*args, **kwargs):
    if errors:
        raise errors.pop()
    save(*args, **kwargs)


trainer._save = save_later
try:
    trainer.save_model()
except OSError:
    trainer.save_model()
if rank == 0:
    trainer._save = die
trainer.save_model(str(HERE / "second"))
"""


def test_failed_save_counts_for_no_later_one(tmp_path):
    with script(tmp_path, RETRY) as world:
        world.end_without_first(start(world, 2))
    check(tmp_path)
    assert (tmp_path / "second" / "model.safetensors").exists()


def test_save_of_rank_0_alone_counts_for_no_other_one(tmp_path):
    lines = ["if rank == 0:", "    save, trainer._save = trainer._save, vars(transformers.Trainer)['_save'].__get__(trainer)"]
    lines += ["    trainer.save_model(str(HERE / 'alone'))", "    trainer._save = save", SAVE]
    with script(tmp_path, *lines) as world:
        world.end_without_first(start(world, 2, DIES="1"))
    check(tmp_path)


@pytest.mark.parametrize("saves", [[SAVE], ["try:", f"    {SAVE}", "except Exception:", "    pass"]], ids=["raises", "ignored"])
def test_file_that_rank_0_never_writes_ends_the_others(tmp_path, saves):
    with script(tmp_path, "if rank == 0:", "    raise SystemExit(3)", *saves) as world:
        workers = start(world, 2)
        world.ends(workers[:1], 3)
        world.ends(workers[1:], 75)
        assert "the script of rank 0 has ended without writing" in workers[1].words()["message"]


# A save that is lost with rank 0 after the script has changed the model, which the script ignores.
LOST = ["trainer.model.float()", "try:", "    trainer.save_model(str(HERE / 'second'))", "except Exception:", "    pass"]


@pytest.mark.parametrize("before", [[], ["own = vars(trainer).pop('_save', None)", SAVE, "if own: trainer._save = own"]])
def test_lost_save_that_the_script_ignores_completes_no_job(tmp_path, before):
    with script(tmp_path, *before, *LOST) as world:
        workers = start(world, 2, DIES="1")
        world.ends(workers[1:], 75)
        assert "rank 0 was lost after the training" in workers[1].words()["message"]


def test_child_that_outlives_rank_0_holds_up_no_rank(tmp_path):
    lines = ["if rank == 0 and os.fork() == 0:", "    wait_for((HERE / 'over').exists)", "    os._exit(0)", SAVE]
    with script(tmp_path, *lines) as world:
        world.end_without_first(start(world, 2, DIES="1"))
        (tmp_path / "over").touch()
    check(tmp_path)


SECOND = """
other = Trainer(model=trainer.model, args=arguments(HERE / "other"), train_dataset=samples(), global_batch_size=4)
assert [one.is_world_process_zero() for one in (trainer, other)] == [rank == 0] * 2
if os.environ.get("DIES_LATER"):
    other._save = die
other.save_model(str(HERE / "out"))
"""


def test_second_trainer_writes_on_rank_0(tmp_path):
    with script(tmp_path, SECOND) as world:
        world.end_without_first(start(world, 2, DIES_LATER="1"))
    check(tmp_path)
