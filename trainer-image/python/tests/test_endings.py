"""The termination message of a process that ends with an exception."""

import importlib
import sys

import pytest
from roundhouse.ending import explained

LIBRARY = """
def read(index):
    raise ValueError(f"sample {index} is damaged:\\n  no pixels\\n")
"""
SCRIPT = """
import torch
import library
from roundhouse import errors
from roundhouse.data import Loader, Sampler

class Data:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        HOW  # place: data

def train(num_workers):
    sampler = Sampler(8, 8, epochs=1)
    loader = Loader(Data(), sampler, num_workers=num_workers)
    try:
        data = loader.load(sampler.plan(0, 0, (1, 0, 1)), 0)
        torch.nn.Linear(4, 2)(data)  # place: pass
    finally:
        loader.close()
"""
LONG = "long words " * 500
# Each character of the message has two or three bytes.
WIDE = "длинные слова → " * 100


@pytest.mark.parametrize("loaders", [0, 1])
@pytest.mark.parametrize(
    ("how", "code", "words", "place"),
    [
        ('raise ValueError("no\\nsample")', None, "ValueError: no sample", "data"),
        ("raise KeyError(index)", None, "KeyError: ", "data"),
        ("assert index > 9", None, "AssertionError", "data"),
        # The last frame of the script itself, not of an installed package.
        ("library.read(index)", None, "ValueError: sample ", "data"),
        ('raise RuntimeError(LONG)', None, "RuntimeError: long words", "data"),
        ('raise RuntimeError(WIDE)', None, "RuntimeError: длинные слова", "data"),
        # A file name that is not UTF-8.
        ('raise RuntimeError("no\\udcff file")', None, "RuntimeError: no? file", "data"),
        ('raise errors.DataError("sample.jpg is damaged")', 65, "sample.jpg is damaged", None),
        # An exception that cannot be created from one argument.
        ('b"\\xff".decode()', None, "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0", "data"),
        ("raise OSError(5, 'no disk') from ValueError('first')", None, "OSError: [Errno 5] no disk", "data"),
        ("return torch.zeros(5)", None, "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x5 and 4x2)", "pass"),
    ],
)
def test_error_is_one_line_with_its_place_in_the_script(
    tmp_path, monkeypatch, how, code, words, place, loaders
):
    library = tmp_path / "site-packages" / "library.py"
    library.parent.mkdir()
    library.write_text(LIBRARY)
    script = tmp_path / "train.py"
    how = how.replace("LONG", repr(LONG)).replace("WIDE", repr(WIDE))
    script.write_text(SCRIPT.replace("HOW", how), encoding="utf-8")
    for directory in (library.parent, tmp_path):
        monkeypatch.syspath_prepend(directory)
    monkeypatch.delitem(sys.modules, "library", raising=False)
    monkeypatch.delitem(sys.modules, "train", raising=False)
    with pytest.raises(Exception) as raised:
        importlib.import_module("train").train(loaders)
    found, message = explained(raised.value)
    assert found == code and message.startswith(words), message
    assert "\n" not in message and "Traceback" not in message and len(message.encode()) <= 600
    if place is not None:
        lines = script.read_text(encoding="utf-8").splitlines()
        number = next(number for number, line in enumerate(lines, 1) if f"place: {place}" in line)
        assert message.endswith(f"(train.py:{number})"), message


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (3, 3, "the script has exited with 3"),
        ("no\n data", 1, "the script has exited with no data"),
        (LONG, 1, "the script has exited with long words"),
        (WIDE, 1, "the script has exited with длинные слова"),
    ],
)
def test_sys_exit_message_is_one_short_line(given, code, words):
    found, message = explained(SystemExit(given))
    assert found == code and message.startswith(words), message
    assert "\n" not in message and len(message.encode()) <= 600, message
