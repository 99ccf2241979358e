"""The type annotations of the package, checked by mypy."""

import os
import pathlib
import subprocess
import sys

import pytest
import roundhouse
import torch

PACKAGE = pathlib.Path(__file__).parents[1]

# Older versions of PyTorch have other types.
pytestmark = pytest.mark.skipif(torch.__version__ < "2.11", reason="mypy reads the types of PyTorch")


def says(directory, *arguments, **variables):
    """Runs a program of mypy, which must find no error, and returns its output."""
    environment = {**os.environ, **variables}
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_types_of_the_package_are_consistent(tmp_path):
    assert "no issues found" in says(PACKAGE, "mypy", f"--cache-dir={tmp_path}")


def test_stubs_match_the_native_part(tmp_path):
    installed = pathlib.Path(roundhouse.__file__).parents[1]
    assert "no issues found" in says(tmp_path, "mypy.stubtest", "roundhouse._native", MYPYPATH=str(installed))
