"""Draws panels into areas of a given size: a number with a small graph, lines over time, a
table."""

import axes
import svg
import units
from data import colour_of, runs, series_of

TITLE = 24
FAINT = "#57606a"


def draw(panel, entry, recording, marks, width, height):
    """A panel with its frame and title. `entry` has the results of its queries."""
    series = series_of(panel, entry)
    title = panel["title"].replace("$rank", entry["value"] or "")
    own = {"stat": stat, "timeseries": axes.plot, "table": table}[panel["type"]]
    if not any(one.points for one in series):
        content = [svg.text(width / 2, (height - TITLE) / 2, "No data", 13, "middle", FAINT)]
    elif panel["type"] == "timeseries":
        content = own(panel, series, recording, marks, width, height - TITLE - 6)
    else:
        content = own(panel, series if panel["type"] == "stat" else entry, recording, width, height - TITLE)
    frame = svg.element("rect", width=float(width), height=float(height), rx=4, fill="#ffffff", stroke="#d0d7de")
    size = min(12.5, max(10.5, (width - 20) / (len(title) * svg.BOLD)))
    head = svg.text(10, 17, svg.fitted(title, width - 20, size, svg.BOLD), size, font_weight=600)
    note = entry["job"] != recording["jobs"][0] and panel["type"] != "table"
    if note and "$job" in "".join(target["expr"] for target in panel["targets"]):
        words = f"job {entry['job']}"
        fits = (len(title) * size * svg.BOLD) + len(words) * 11 * svg.CHARACTER < width - 30
        head += svg.text(width - 10, 17, words, 11, "end", FAINT) if fits else svg.text(10, 33, words, 11, fill=FAINT)
    return svg.group([frame, head, svg.group(content, 0.0, float(TITLE))])


def stat(panel, series, recording, width, height):
    """The newest values in the colours of their thresholds."""
    config, options = panel["fieldConfig"]["defaults"], panel["options"]
    parts = []
    if options["graphMode"] == "area":
        parts += graph(series[0], recording, config, width, height)
    many = len(series) > 1
    shown = series[: max(int(height / 20), 1)] if many else series
    for number, one in enumerate(shown):
        value = units.shown(one.last, config["unit"], config.get("decimals"))
        colour = colour_of(one.last, config["thresholds"])
        if options["textMode"] == "name":
            value = one.name
        if many:
            y = 14 + 20 * number
            parts.append(svg.text(10, y, svg.fitted(one.name, width - 90), fill=FAINT))
            parts.append(svg.text(width - 10, y, value, 14, "end", colour, font_weight=600))
        else:
            size = min(30, (width - 16) / (max(len(value), 1) * 0.62))
            parts.append(svg.text(width / 2, height / 2 + size / 3, value, size, "middle", colour, font_weight=600))
            if options["textMode"] == "value_and_name":
                parts.append(svg.text(width / 2, height - 8, svg.fitted(one.name, width - 20), 12, "middle", FAINT))
    return parts


def graph(series, recording, config, width, height):
    """The small graph below a number."""
    values = [value for _, value in series.points]
    least, most = min(0.0, *values), max(values)
    if most <= least:
        return []
    base, room = height - 1, height * 0.38
    parts = []
    for run in runs(series.points, recording["step"]):
        line = [(width * at / recording["seconds"], base - room * (value - least) / (most - least)) for at, value in run]
        ends = [(line[-1][0], base), (line[0][0], base)]
        colour = colour_of(series.last, config["thresholds"])
        parts.append(svg.path(line + ends, closed=True, fill=colour, opacity="0.15"))
    return parts


def rows_of(panel, entry):
    """The rows of a table as {labels: {query: newest value}}."""
    by = list(panel["transformations"][1]["options"]["indexByName"])
    rows = {}
    for target in panel["targets"]:
        for one in entry["targets"].get(target["refId"], []):
            key = tuple(one["labels"].get(label, "") for label in by)
            rows.setdefault(key, {})[target["refId"]] = one["points"][-1][1]
    return rows


def lines_of_table(panel, entry):
    """The number of grid lines that a table needs."""
    return 3 + len(rows_of(panel, entry))


def table(panel, entry, recording, width, height):
    """A table with a row for each set of labels and a column for each query."""
    rename = panel["transformations"][1]["options"]["renameByName"]
    by = list(panel["transformations"][1]["options"]["indexByName"])
    properties = {
        one["matcher"]["options"]: {each["id"]: each["value"] for each in one["properties"]}
        for one in panel["fieldConfig"]["overrides"]
    }
    rows = rows_of(panel, entry)
    by = [(number, label) for number, label in enumerate(by) if any(key[number] for key in rows)]
    names = [label for _, label in by] + [rename[f"Value #{target['refId']}"] for target in panel["targets"]]
    # The names of jobs and namespaces need more room than numbers.
    weights = [1.9 if number < len(by) else 1.0 for number in range(len(names))]
    starts = [10 + (width - 20) * sum(weights[:number]) / sum(weights) for number in range(len(names))]
    parts = [svg.text(x, 16, name, fill=FAINT, font_weight=600) for x, name in zip(starts, names)]
    for number, (key, values) in enumerate(sorted(rows.items())):
        y = 42 + 24 * number
        if y > height - 6:
            break
        parts.append(svg.path([(10, y - 17), (width - 10, y - 17)], stroke="#e3e6ea", fill="none"))
        cells = [(key[place], "#24292f") for place, _ in by]
        for target in panel["targets"]:
            own = properties.get(rename[f"Value #{target['refId']}"], {})
            value = values.get(target["refId"])
            colour = colour_of(value, own["thresholds"]) if value is not None and "thresholds" in own else "#24292f"
            cells.append(("" if value is None else units.shown(value, own.get("unit", "none")), colour))
        parts += [svg.text(x, y, words, fill=colour) for x, (words, colour) in zip(starts, cells)]
    return parts
