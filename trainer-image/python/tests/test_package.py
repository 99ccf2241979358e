"""The version of the package."""

from roundhouse import __version__


def test_version_is_that_of_the_crates() -> None:
    numbers = __version__.split("-")[0].split(".")
    assert [int(number) for number in numbers] > [0, 0]
