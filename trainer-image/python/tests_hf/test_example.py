"""The examples of examples/pytorch with the Trainer of transformers."""

import re
import signal

from conftest import HERE, environment
from world import until

EXAMPLES = HERE.parents[2] / "examples" / "pytorch"


def test_example_trains_and_saves_in_one_process(starter, tmp_path):
    variables = {**environment(), "OUT": str(tmp_path / "out"), "EPOCHS": "0.1"}
    process = starter.start([EXAMPLES / "hf.py"], variables, tmp_path / "log")
    assert process.wait(240) == 0, (tmp_path / "log").read_text()
    assert "loss on the last speeches: " in (tmp_path / "log").read_text()
    assert (tmp_path / "out" / "model.safetensors").is_file()


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
