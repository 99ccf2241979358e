"""Exports: files of the weights that rank 0 writes while training continues."""

import re
import signal
import threading
import warnings

import pytest
import roundhouse as rh
import torch
from conftest import load
from roundhouse.exports import Exports, write_file
from small_script import DATA, loss_of, train
from world import World, until


class Volume:
    """A volume that does not answer until a test releases it."""

    def __init__(self):
        self.written, self.answers, self.error = [], threading.Event(), None

    def write(self, file, tensors):
        assert self.answers.wait(60)
        if self.error is not None:
            raise self.error
        self.written.append((file.name, tensors))


def steps_in(file):
    """The number of the step that a file of scripts/export.py contains."""
    numbers = load(file)["number"].unique().tolist()
    assert len(numbers) == 1, f"{file} is of the steps {numbers}"
    return int(numbers[0])


def test_slow_volume_gets_the_newest_tensors_of_each_file(tmp_path):
    volume = Volume()
    exports = Exports(volume.write)
    for number in range(4):
        exports.start(tmp_path / "best", number, number)
    exports.start(tmp_path / "other", 9, 9)
    volume.answers.set()
    exports.wait(60)
    assert [number for name, number in volume.written if name == "best"] == [0, 3]
    assert ("other", 9) in volume.written
    exports.start(tmp_path / "best", 4, 4)
    exports.wait(60)
    assert volume.written[-1] == ("best", 4)


def test_end_does_not_wait_indefinitely_for_a_volume(tmp_path):
    volume = Volume()
    exports = Exports(volume.write)
    exports.start(tmp_path / "best", 0, 0)
    with pytest.warns(UserWarning, match="best is not written after 0 s"):
        exports.wait(0.01)
    exports.wait(60, tmp_path / "another file")
    volume.answers.set()
    exports.wait(60)


@pytest.mark.parametrize("action", ["always", "error"])
def test_failed_write_does_not_stop_later_ones(tmp_path, capfd, action):
    volume = Volume()
    volume.error = OSError(28, "No space left on device")
    exports = Exports(volume.write)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter(action)
        for number in (1, 2):
            exports.start(tmp_path / "best", number, number)
        volume.answers.set()
        exports.wait(60)
        volume.error = None
        exports.start(tmp_path / "best", 3, 3)
        exports.wait(60)
    said = capfd.readouterr().err if action == "error" else "\n".join(str(one.message) for one in seen)
    assert re.search("best was not written after step 1, and keeps.*No space left", said), said
    assert "after step 2" in said and volume.written == [("best", 3)]


def test_export_contains_the_weights_of_its_step(tmp_path, parts):
    seen = []

    def body(job, loss):
        job.commit(loss, parts.both)
        seen.append({name: tensor.clone() for name, tensor in parts.head.state_dict().items()})
        assert job.export(f"exports/{job.steps_done}", job.model(parts.head)) == tmp_path / "exports" / str(job.steps_done)

    train(parts, body, steps=3, checkpoint_dir=tmp_path)
    for number, weights in enumerate(seen, 1):
        found = load(tmp_path / "exports" / str(number))
        assert found.keys() == weights.keys() and all(torch.equal(found[name], weights[name]) for name in found)
    assert sorted(file.name for file in (tmp_path / "exports").iterdir()) == ["1", "2", "3"]


def test_end_of_the_training_waits_for_the_last_export(tmp_path, parts):
    volume = Volume()

    def body(job, loss):
        job.commit(loss, parts.both)
        job._exports = Exports(volume.write)
        job.export(tmp_path / str(job.steps_done))
        if job.steps_done == 2:
            threading.Timer(0.3, volume.answers.set).start()

    train(parts, body, steps=2)
    assert "2" in dict(volume.written)


def test_late_export_does_not_replace_the_result(tmp_path, parts):
    answers = threading.Event()

    def write_late(file, tensors):
        assert answers.wait(60)
        write_file(file, tensors)

    with rh.join(state=parts.state()) as job:
        job._exports = Exports(write_late)
        net = job.model(parts.head)
        for batch in job.steps(DATA, job.sampler(40, 8, steps=3)):
            loss = loss_of(net(batch.x), batch.y)
            loss.backward()
            job.commit(loss, parts.second)
            if batch.step.number == 1:
                job.export(tmp_path / "weights", net)
        threading.Timer(0.3, answers.set).start()
        job.save_result(tmp_path / "weights", net)
    assert torch.equal(load(tmp_path / "weights")["weight"], parts.head.weight)


def test_other_users_may_read_what_the_umask_allows(tmp_path):
    (tmp_path / "other").touch()
    write_file(tmp_path / "weights", {"weight": torch.ones(2)})
    modes = [(tmp_path / name).stat().st_mode for name in ("other", "weights")]
    assert modes[0] == modes[1]


def test_export_without_a_module_is_explained():
    tensor = torch.zeros(3, requires_grad=True)
    with pytest.raises(rh.ConfigError, match="job.export without a module"):
        with rh.join(state={"tensor": tensor}) as job:
            for _ in job.indices(job.sampler(4, 2, steps=1)):
                job.export("weights")


def test_file_is_complete_after_kills_of_a_writing_rank_0(tmp_path):
    file = tmp_path / "exports" / "best.safetensors"
    with World(tmp_path, "export.py", 60, file, variables={"LARGE": "32"}) as world:
        members = world.begin(2)
        for number in (5, 15):
            world.slow(100)
            world.reach(members, number)
            world.slow(0)
            # Rank 0 is killed while a thread writes.
            until("rank 0 writes", lambda: list(file.parent.glob("*.partial-*")))
            members[0].kill()
            until("rank 0 is gone", members[0].is_gone)
            assert number <= steps_in(file) + 5
            again = world.start(members[0].index)
            world.prepared([again])
            # The rank that stayed is rank 0.
            members = [members[1], again]
            world.form(members)
        world.ends(members)
    # The end waits for the last export. The incomplete files of the killed ranks are gone.
    assert steps_in(file) == 60 and [one.name for one in file.parent.iterdir()] == ["best.safetensors"]


def test_volume_with_an_error_does_not_end_the_training(tmp_path):
    (tmp_path / "exports").write_text("no directory")
    with World(tmp_path, "export.py", 20, tmp_path / "exports" / "best.safetensors") as world:
        workers = world.begin(2)
        world.ends(workers)
        said = workers[0].log.read_text()
    assert "best.safetensors was not written after step 20" in said and "Error" in said
    assert "not written" not in workers[1].log.read_text()


def test_suspended_rank_0_completes_its_export(tmp_path):
    file = tmp_path / "exports" / "best.safetensors"
    with World(tmp_path, "export.py", 10_000, file, variables={"LARGE": "32"}) as world:
        world.slow(10)
        workers = world.begin(2)
        world.reach(workers, 5)
        for worker in workers:
            worker.kill(signal.SIGTERM)
        world.ends(workers, 143)
        assert steps_in(file) == workers[0].status()["step"]
        assert [one.name for one in file.parent.iterdir()] == ["best.safetensors"]
