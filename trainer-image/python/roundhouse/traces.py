"""The message of an error in one line, and its place in the script's own code."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

# Kubernetes keeps the first 1,024 bytes of a message. The worker's name comes first, and the place
# last.
_MOST_BYTES = 500
# Paths that are not the script's: installed packages, this package, PyTorch, and the standard
# library.
_PACKAGES = {"site-packages", "dist-packages"}
_LIBRARY = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
_DIRECTORIES = [Path(__file__).parent, Path(torch.__file__).parent, *_LIBRARY]
# The form that PyTorch gives to an error of a process or thread that loads data: see
# torch._utils.ExceptionWrapper.
_WRAPPED = re.compile(r"Caught \S+ in .*\.\nOriginal ")
_BEGIN = "Traceback (most recent call last):\n"
_FRAME = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)

Place = tuple[str, int]


def words_and_place(error: BaseException) -> tuple[str, str, str]:
    """The name of the error's type, its message as one line, and its place, such as
    `` (train.py:12)``, or an empty string.

    The place is the last frame in the script's own code, or the last frame if there is none. For an
    error of a loader's worker it is the error that the worker raised.
    """
    kind, words = type(error).__name__, str(error)
    places: list[Place] = []
    if _WRAPPED.match(words) and _BEGIN in words:
        kind, words, places = _unwrapped(words, kind)
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    own = _own(places) or _own(frames)
    last = (own or places or frames)[-1:]
    return kind, " ".join(words.split()), "".join(f" ({Path(file).name}:{line})" for file, line in last)


def cut(words: str) -> str:
    """Shortens a long message to its first part."""
    # Some messages are not UTF-8, such as file names.
    row = words.encode(errors="replace")
    return row.decode() if len(row) <= _MOST_BYTES else row[: _MOST_BYTES - 3].decode(errors="ignore") + "..."


def shortened(names: Sequence[str]) -> str:
    """The first of many names."""
    return ", ".join([*names[:3], f"and {len(names) - 3} others"] if len(names) > 4 else names)


def _own(places: list[Place]) -> list[Place]:
    return [place for place in places if _is_own(place[0])]


def _is_own(file: str) -> bool:
    # Names such as <frozen runpy>, and code of torch.fx, are not the script's. Code of `python -c`
    # and of a notebook is.
    if file.startswith("<"):
        return file in ("<string>", "<stdin>") or file.startswith("<ipython")
    path = Path(file)
    return not _PACKAGES.intersection(path.parts) and not any(path.is_relative_to(it) for it in _DIRECTORIES)


def _unwrapped(text: str, kind: str) -> tuple[str, str, list[Place]]:
    """Type, message and places of a worker's error, whose traceback is the text of another
    error."""
    # An error with a cause has several tracebacks. The last one is its own.
    last = text[text.rindex(_BEGIN) + len(_BEGIN) :]
    frames = list(_FRAME.finditer(last))
    lines = last[frames[-1].end() :].splitlines()[1:] if frames else last.splitlines()
    # Source lines are indented.
    while lines and (not lines[0].strip() or lines[0].startswith("  ")):
        lines.pop(0)
    named, _, words = "\n".join(lines).partition(":")
    if named.replace(".", "").replace("_", "").isalnum():
        kind = named.rpartition(".")[2]
    else:
        words = "\n".join(lines)
    return kind, words, [(frame[1], int(frame[2])) for frame in frames]
