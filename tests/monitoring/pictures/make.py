#!/usr/bin/env python3
"""Draws the dashboards with recorded data: for each RECORDINGS/NAME.json it writes
OUTPUT/dashboard-NAME.svg.

The layout, titles, units, legends and thresholds are those of the dashboard. `record.py` records
the data.
"""

import argparse
import json
import pathlib
import sys

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import panels  # noqa: E402
import svg  # noqa: E402
from data import NAMED, runs  # noqa: E402

DASHBOARDS = HERE.parents[2] / "charts/roundhouse/dashboards"
# Pixels: width of a grid column (there are 24), height of a grid line, gap between panels, margin,
# and heading.
COLUMN, LINE, GAP, EDGE, HEAD = 45, 28, 6, 12, 56


def marks_of(dashboard, recording):
    """The marks of annotations as (seconds, colour): the times at which an annotation starts to
    have a value."""
    found = []
    for mark in dashboard["annotations"]["list"]:
        for one in recording["annotations"].get(mark["name"], []):
            wanted = [point for point in one["points"] if point[1] > 0]
            found += [(run[0][0], mark["iconColor"]) for run in runs(wanted, recording["step"])]
    return found


def head(dashboard, recording, width):
    """The title, the description and the values of the variables."""
    known = {"namespace": recording["namespace"], "job": recording["jobs"][0]}
    chosen = [variable["name"] for variable in dashboard["templating"]["list"] if variable["name"] in known]
    values = ", ".join(f"{name} {known[name]}" for name in chosen)
    parts = [
        svg.text(EDGE, 24, dashboard["title"], 17, font_weight=600),
        svg.text(EDGE, 44, dashboard["description"], fill="#57606a"),
        svg.text(width - EDGE, 24, values, 12, "end", "#57606a"),
    ]
    x = width - EDGE
    for mark in reversed(dashboard["annotations"]["list"]):
        if "expr" in mark:
            x -= len(mark["name"]) * 12 * svg.CHARACTER
            parts.append(svg.text(x, 44, mark["name"]))
            line = [(x - 7, 33), (x - 7, 47)]
            parts.append(svg.path(line, stroke=NAMED[mark["iconColor"]], stroke_dasharray="3 3", stroke_width="2", fill="none"))
            x -= 24
    return parts


def placed(dashboard, recording):
    """The panels as (panel, entry, x, y, width, height) in columns and lines. The copies of a
    repeated panel share its position, four to a line."""
    shift = 0
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        if panel["type"] == "row":
            yield panel, None, place["x"], place["y"] + shift, place["w"], place["h"]
            continue
        entries = recording["panels"].get(str(panel["id"])) or [{"job": recording["jobs"][0], "value": None, "targets": {}}]
        per_line = min(len(entries), panel.get("maxPerRow", 4))
        width, height = place["w"] / per_line, place["h"]
        if panel["type"] == "table":
            # Removes the empty space below the rows.
            height = min(height, panels.lines_of_table(panel, entries[0]))
        for number, entry in enumerate(entries):
            line, column = divmod(number, per_line)
            yield panel, entry, place["x"] + column * width, place["y"] + shift + line * place["h"], width, height
        shift += place["h"] * ((len(entries) - 1) // per_line)


def draw(dashboard, recording):
    """Draws one dashboard as SVG."""
    marks = marks_of(dashboard, recording)
    width = 24 * COLUMN + 2 * EDGE
    parts, bottom = head(dashboard, recording, width), 0
    for panel, entry, x, y, columns, lines in placed(dashboard, recording):
        left, top = EDGE + x * COLUMN, HEAD + y * LINE
        bottom = max(bottom, top + lines * LINE)
        if entry is None:
            parts.append(svg.text(left, top + 19, panel["title"], 14, font_weight=600))
            continue
        drawn = panels.draw(panel, entry, recording, marks, columns * COLUMN - GAP, lines * LINE - GAP)
        parts.append(svg.group([drawn], left, top))
    return svg.document(parts, width, bottom + EDGE, f"{dashboard['title']}: {dashboard['description']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recordings", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    arguments = parser.parse_args()
    recordings = sorted(arguments.recordings.glob("*.json"))
    if not recordings:
        sys.exit(f"{arguments.recordings} has no recording. Record data first: ROUNDHOUSE_PICTURES={arguments.recordings} tests/run/e2e")
    for path in recordings:
        dashboard = json.loads((DASHBOARDS / path.name).read_text())
        picture = arguments.output / f"dashboard-{path.stem}.svg"
        picture.write_text(draw(dashboard, json.loads(path.read_text())))
        print(picture)


if __name__ == "__main__":
    main()
