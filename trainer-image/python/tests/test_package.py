"""The version of the package, and the page about its interface."""

import pathlib

import roundhouse as rh

REFERENCE = pathlib.Path(__file__).parents[3] / "docs" / "reference" / "python.md"


def test_version_is_that_of_the_crates() -> None:
    numbers = rh.__version__.split("-")[0].split(".")
    assert [int(number) for number in numbers] > [0, 0]


def test_reference_names_the_whole_interface() -> None:
    page = REFERENCE.read_text()
    errors = {name for name in rh.__all__ if isinstance(getattr(rh, name), type) and issubclass(getattr(rh, name), Exception)}
    names = {f"rh.{name}" for name in set(rh.__all__) - errors - {"Job", "__version__"}}
    names |= {f"job.{name}" for name in vars(rh.Job) if not name.startswith("_")}
    names |= {f"{name}`" for name in errors} | {"roundhouse.__version__"}
    assert not [name for name in sorted(names) if name not in page]
