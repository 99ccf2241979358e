"""The examples of examples/pytorch with transformers and accelerate."""

import re
import signal

import pytest
from conftest import HERE
from libraries import environment
from world import until

EXAMPLES = HERE.parents[2] / "examples" / "pytorch"


def output_of(starter, directory, example, epochs):
    """The output of an example in one process, which saves its model in the folder ``out``."""
    variables = {**environment(), "OUT": str(directory / "out"), "EPOCHS": epochs}
    process = starter.start([EXAMPLES / example], variables, directory / "log")
    log = directory / "log"
    assert process.wait(240) == 0, log.read_text()
    assert (directory / "out" / "model.safetensors").is_file()
    return log.read_text()


@pytest.mark.parametrize("example", ["hf.py", "hf_sharded.py"])
def test_example_trains_and_saves_in_one_process(starter, tmp_path, example):
    assert "loss on the last speeches: " in output_of(starter, tmp_path, example, "0.1")


def test_loop_of_the_example_trains_in_one_process(starter, tmp_path):
    accuracies = re.findall(r"([\d.]+)% of the test images", output_of(starter, tmp_path, "accelerate_digits.py", "4"))
    assert len(accuracies) == 4 and float(accuracies[-1]) > 80


def test_example_of_restarts_continues_from_the_step_of_sigterm(starter, tmp_path):
    out, logs = tmp_path / "out", [tmp_path / "log-0", tmp_path / "log-1"]

    def saved():
        return [int(path.parent.name.split("-")[1]) for path in out.glob("checkpoint-*/trainer_state.json")]

    # Enough epochs, of 24 steps each, that only SIGTERM ends the training.
    variables = {**environment(), "OUT": str(out), "EPOCHS": "500"}
    process = starter.start([EXAMPLES / "hf_restart.py"], variables, logs[0])
    until("an epoch is saved", saved)
    before = max(saved())
    process.send_signal(signal.SIGTERM)
    assert process.wait(240) == 0, logs[0].read_text()
    last = max(saved())
    assert last > before
    assert not (out / "model.safetensors").exists()
    variables["EPOCHS"] = str(last / 24 + 0.5)
    process = starter.start([EXAMPLES / "hf_restart.py"], variables, logs[1])
    assert process.wait(240) == 0, logs[1].read_text()
    assert re.search(rf"continues from .*checkpoint-{last}$", logs[1].read_text(), re.MULTILINE)
    assert (out / "model.safetensors").is_file()
