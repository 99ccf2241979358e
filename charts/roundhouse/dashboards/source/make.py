#!/usr/bin/env python3
"""Writes fleet.json, job.json and operator.json beside the directory of this file: python3 source/make.py

With --check it writes nothing, and exits with 1 if a file is not what it would write.
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
    check = sys.argv[1:] == ["--check"]
    stale = []
    for name, module in (("fleet", fleet), ("job", job), ("operator", operators)):
        path = HERE.parent / f"{name}.json"
        text = json.dumps(module.build(), indent=2, ensure_ascii=False) + "\n"
        if not check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(path.name)
    if stale:
        sys.exit(f"{', '.join(stale)}: not what the sources say. Run python3 charts/roundhouse/dashboards/source/make.py")


if __name__ == "__main__":
    main()
