"""What an error says, in one line, and the place in the script's own code that it comes from."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

# Kubernetes keeps 1,024 bytes of a message, from its beginning. The worker's name comes first, and the place last.
_MOST_BYTES = 500
# Of no script: installed packages wherever they are, this package, PyTorch, and the standard library.
_PACKAGES = {"site-packages", "dist-packages"}
_LIBRARY = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
_DIRECTORIES = [Path(__file__).parent, Path(torch.__file__).parent, *_LIBRARY]
# What PyTorch makes of an error in a process or thread that loads data: see torch._utils.ExceptionWrapper.
_WRAPPED = re.compile(r"Caught \S+ in .*\.\nOriginal ")
_BEGIN = "Traceback (most recent call last):\n"
_FRAME = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)

Place = tuple[str, int]


def words_and_place(error: BaseException) -> tuple[str, str, str]:
    """The name of the error's type, its words as one line, and its place, such as `` (train.py:12)``, or nothing.

    The place is the last one in the script's own code; if there is none, the last one. An error of a loader's worker is
    the one that the worker has raised.
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
    """The beginning of long words."""
    # Some words are no UTF-8, such as the name of a file.
    row = words.encode(errors="replace")
    return row.decode() if len(row) <= _MOST_BYTES else row[: _MOST_BYTES - 3].decode(errors="ignore") + "..."


def shortened(names: Sequence[str]) -> str:
    """Some of many names."""
    return ", ".join([*names[:3], f"and {len(names) - 3} others"] if len(names) > 4 else names)


def _own(places: list[Place]) -> list[Place]:
    return [place for place in places if _is_own(place[0])]


def _is_own(file: str) -> bool:
    # Such as <frozen runpy>, and code that torch.fx has made; that of `python -c` and of a notebook is the script's.
    if file.startswith("<"):
        return file in ("<string>", "<stdin>") or file.startswith("<ipython")
    path = Path(file)
    return not _PACKAGES.intersection(path.parts) and not any(path.is_relative_to(it) for it in _DIRECTORIES)


def _unwrapped(text: str, kind: str) -> tuple[str, str, list[Place]]:
    """Type, words and places of the error of a worker, whose traceback is the text of another one."""
    # An error with a cause has several. The last one is its own.
    last = text[text.rindex(_BEGIN) + len(_BEGIN) :]
    frames = list(_FRAME.finditer(last))
    lines = last[frames[-1].end() :].splitlines()[1:] if frames else last.splitlines()
    # Lines of source are indented.
    while lines and (not lines[0].strip() or lines[0].startswith("  ")):
        lines.pop(0)
    named, _, words = "\n".join(lines).partition(":")
    if named.replace(".", "").replace("_", "").isalnum():
        kind = named.rpartition(".")[2]
    else:
        words = "\n".join(lines)
    return kind, words, [(frame[1], int(frame[2])) for frame in frames]
