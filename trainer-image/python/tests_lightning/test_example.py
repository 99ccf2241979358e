"""The example examples/pytorch/lightning_digits.py."""

import re

from conftest import HERE
from libraries import environment

EXAMPLE = HERE.parents[2] / "examples" / "pytorch" / "lightning_digits.py"


def test_example_trains_and_saves_in_one_process(starter, tmp_path):
    variables = {**environment(), "OUT": str(tmp_path / "out"), "EPOCHS": "4"}
    process = starter.start([EXAMPLE], variables, tmp_path / "log")
    log = tmp_path / "log"
    assert process.wait(240) == 0, log.read_text()
    assert float(re.search(r"([\d.]+)% of the test images", log.read_text())[1]) > 80
    assert (tmp_path / "out" / "weights.pt").is_file()
