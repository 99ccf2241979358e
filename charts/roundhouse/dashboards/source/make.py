#!/usr/bin/env python3
"""Writes fleet.json, job.json and operator.json.

usage: make.py [DIRECTORY]      default: the parent of this file's directory
"""

import json
import pathlib
import sys

sys.dont_write_bytecode = True

import fleet  # noqa: E402
import job  # noqa: E402
import operators  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent


def main():
    directory = pathlib.Path(sys.argv[1]) if sys.argv[1:] else HERE.parent
    for name, module in (("fleet", fleet), ("job", job), ("operator", operators)):
        text = json.dumps(module.build(), indent=2, ensure_ascii=False) + "\n"
        (directory / f"{name}.json").write_text(text)


if __name__ == "__main__":
    main()
