"""Versions of PyTorch and other libraries: which ones the package refuses, and its pages name."""

import pathlib
import re
import subprocess
import sys

import pytest
import roundhouse as rh
import torch
from roundhouse import replica, versions
from torch.torch_version import TorchVersion
from world import World

ROOT = pathlib.Path(__file__).parents[3]
PYPROJECT = (ROOT / "trainer-image/python/pyproject.toml").read_text()
# Imports the package where PyTorch is another version.
OF_ANOTHER_VERSION = """
import torch
torch.__version__ = torch.torch_version.TorchVersion("2.3.1")
import roundhouse
"""


def known_versions():
    """The versions in tests/run/versions.sh, by name. The first one of a name is the oldest."""
    found = {}
    for name, version in re.findall(r"\b([A-Z_]+):?=\"?([\d.]+)", (ROOT / "tests/run/versions.sh").read_text()):
        found.setdefault(name, []).append(version)
    return found


def test_import_without_pytorch_says_what_is_needed():
    source = 'import sys; sys.modules["torch"] = None; import roundhouse'
    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=300)
    assert "ConfigError: roundhouse needs PyTorch 2.4 or newer, which pip does not install with it" in ended.stderr, ended.stderr


def test_worker_with_an_older_pytorch_fails_its_job_at_once(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(OF_ANOTHER_VERSION)
    with World(tmp_path, script) as world:
        worker = world.start(0)
        world.ends([worker], rh.ConfigError.exit_code)
        message = worker.words()["message"]
    assert "roundhouse needs PyTorch 2.4 or newer, and 2.3.1 is installed: install a newer one" in message, message


@pytest.mark.parametrize("version", ["2.4.1", "2.6.0+cpu"])
def test_mesh_names_the_version_that_it_needs(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    with pytest.raises(rh.ConfigError, match=f"rh.replica_mesh needs PyTorch 2.7 or newer, and {re.escape(version)} is installed"):
        rh.replica_mesh()
    assert replica.current() is None and not torch.distributed.is_initialized()


@pytest.mark.parametrize("version", ["2.7.0", "2.11.0+cpu", "2.15.0", "3.0.0a0+git1234"])
def test_newer_versions_are_accepted(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    versions.require_torch(versions.OLDEST_WITH_REPLICAS, "this")


def test_package_requires_the_oldest_versions_that_are_tested():
    oldest = {name: known_versions()[f"OLDEST_{name.upper()}"][0] for name in ("torch", "transformers", "lightning")}
    oldest["accelerate"] = known_versions()["ACCELERATE"][0]
    for name, version in oldest.items():
        minimum = re.search(rf'"{name}>=([\d.]+)"', PYPROJECT)[1]
        assert version.startswith(f"{minimum}."), f"{name} {version} is tested, and {minimum} is required"
    assert oldest["torch"].startswith(f"{versions.OLDEST}.")
    assert known_versions()["OLDEST_TORCH_WITH_REPLICAS"][0].startswith(f"{versions.OLDEST_WITH_REPLICAS}.")


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("docs/python.md", ["OLDEST_TORCH", "USUAL_TORCH", "NEWEST_TORCH"]),
        ("docs/reference/python.md", ["OLDEST_TORCH", "OLDEST_TORCH_WITH_REPLICAS", "USUAL_TORCH", "NEWEST_TORCH"]),
        ("docs/guides/sharded-models.md", ["OLDEST_TORCH_WITH_REPLICAS"]),
        ("docs/guides/hugging-face.md", ["OLDEST_TRANSFORMERS", "TRANSFORMERS", "ACCELERATE", "PEFT", "TRL"]),
        ("docs/guides/accelerate.md", ["ACCELERATE"]),
        ("docs/guides/lightning.md", ["OLDEST_LIGHTNING", "LIGHTNING"]),
        ("trainer-image/python/roundhouse/hf/internals/libraries.py", ["TRANSFORMERS", "ACCELERATE"]),
        ("trainer-image/python/roundhouse/lightning/internals.py", ["LIGHTNING"]),
    ],
)
def test_page_names_the_tested_versions(page, names):
    text = (ROOT / page).read_text()
    # A message of the package names the newest version, and the minimum in another form.
    which = slice(None) if page.endswith(".md") else slice(-1, None)
    missing = [f"{name} {version}" for name in names for version in known_versions()[name][which] if version not in text]
    assert not missing, missing
