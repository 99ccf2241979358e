"""The example examples/pytorch/hf.py."""

from conftest import HERE
from libraries import environment

EXAMPLE = HERE.parents[2] / "examples" / "pytorch" / "hf.py"


def test_example_trains_and_saves_in_one_process(starter, tmp_path):
    variables = {**environment(), "OUT": str(tmp_path / "out"), "EPOCHS": "0.1"}
    process = starter.start([EXAMPLE], variables, tmp_path / "log")
    assert process.wait(240) == 0, (tmp_path / "log").read_text()
    assert "loss on the last speeches: " in (tmp_path / "log").read_text()
    assert (tmp_path / "out" / "model.safetensors").is_file()
