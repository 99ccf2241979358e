"""The complete scripts of docs/python.md, for tests with small models."""

import pathlib
import re

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "python.md"


def script_of_page(directory, words, **changes):
    """Writes the script whose first line has these words. ``changes``: the new values of the names
    of an assignment in capitals, and ``double=True`` for 64 bits."""
    scripts = re.findall(r'```python\n(""".*?)```', PAGE.read_text(), re.DOTALL)
    (text,) = [one for one in scripts if words in one.splitlines()[0]]
    if changes.pop("double", False):
        text = text.replace("\n\ndef main():\n", "\n\ntorch.set_default_dtype(torch.float64)\n\n\ndef main():\n", 1)
        text = text.replace(".float()", ".double()")
    for name, value in changes.items():
        assigned = re.search(rf"^([A-Z_, ]*\b{name}\b[A-Z_, ]*) = (.*)$", text, re.MULTILINE)
        names, values = assigned[1].split(", "), assigned[2].split(", ")
        values[names.index(name)] = str(value)
        text = text.replace(assigned[0], f"{assigned[1]} = {', '.join(values)}")
    file = directory / "script.py"
    file.write_text(text)
    return file
