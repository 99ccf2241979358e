"""The metrics that exist, read from the page of the reference, and the metrics that a PromQL
expression uses."""

import pathlib
import re

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
# The page is generated from the registries, and a contract test compares it with them.
PAGE = REPOSITORY / "docs/reference/metrics.md"
KEYWORDS = {
    "and",
    "or",
    "unless",
    "bool",
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
    "offset",
    "inf",
    "nan",
}


def registered():
    """The names that the operator, the agent and the trainer register."""
    return set(re.findall(r"^\| `([a-z0-9_]+)` \|", PAGE.read_text(), re.MULTILINE))


def recorded():
    """The names in the recorded exposition of a GPU node."""
    text = (REPOSITORY / "tests/monitoring/gpu-node.prom").read_text()
    return {line.split("{")[0] for line in text.splitlines() if line and not line.startswith("#")}


def known():
    """All names that a query may use, without the suffixes of histograms."""
    return registered() | recorded()


def family(name, names):
    """The metric of a name, without the suffix of a histogram; None if it is unknown."""
    for one in (name, re.sub(r"_(bucket|sum|count)$", "", name)):
        if one in names:
            return one
    return None


def used(expr):
    """The names of the metrics in a PromQL expression."""
    expr = re.sub(r'"(\\.|[^"\\])*"', '""', expr)
    expr = re.sub(r"(?m)#.*$", "", expr)
    expr = re.sub(r"\{[^}]*\}", " ", expr)
    expr = re.sub(r"\[[^\]]*\]", " ", expr)
    expr = re.sub(r"\boffset\s+\S+", " ", expr)
    expr = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", expr)
    words = re.findall(r"(?<![\w$.])([a-zA-Z_:][\w:]*)(?!\w)(?!\s*\()", expr)
    return {word for word in words if word not in KEYWORDS}
