"""The examples examples/pytorch/hf.py and accelerate_digits.py."""

import re

from conftest import HERE
from libraries import environment

EXAMPLES = HERE.parents[2] / "examples" / "pytorch"


def output_of(starter, directory, example, epochs):
    """The output of an example in one process, which saves its model in the folder ``out``."""
    variables = {**environment(), "OUT": str(directory / "out"), "EPOCHS": epochs}
    process = starter.start([EXAMPLES / example], variables, directory / "log")
    log = directory / "log"
    assert process.wait(240) == 0, log.read_text()
    assert (directory / "out" / "model.safetensors").is_file()
    return log.read_text()


def test_example_trains_and_saves_in_one_process(starter, tmp_path):
    assert "loss on the last speeches: " in output_of(starter, tmp_path, "hf.py", "0.1")


def test_loop_of_the_example_trains_in_one_process(starter, tmp_path):
    accuracies = re.findall(r"([\d.]+)% of the test images", output_of(starter, tmp_path, "accelerate_digits.py", "4"))
    assert len(accuracies) == 4 and float(accuracies[-1]) > 80
