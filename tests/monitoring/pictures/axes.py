"""Plots lines or stacked areas over time, with axes, thresholds, marks and a legend."""

import math

import svg
import units
from data import NAMED, runs

GRID, FAINT = "#e3e6ea", "#57606a"
# Pixels for the labels: the minimum on the left of the plot, and below it.
LEFT, BOTTOM = 58, 18
LEGEND_LINE = 15
# Pixels that a label of the time axis needs.
TIME_LABEL = 42


def plot(panel, series, recording, marks, width, height):
    """The elements of a panel below its title, in an area of this size."""
    config = panel["fieldConfig"]["defaults"]
    unit, custom = config["unit"], config["custom"]
    stacked = custom["stacking"]["mode"] == "normal"
    logarithmic = custom["scaleDistribution"]["type"] == "log"
    most_lines = max(int((height - 90) / LEGEND_LINE), 1)
    legend = legend_of(series, unit, width, min(len(series), most_lines))
    field = height - BOTTOM - LEGEND_LINE * len(legend) - 6
    layers = stack(series) if stacked else [(one, None, one.points) for one in series]
    values = [value for _, _, points in layers for _, value in points]
    levels = [step for step in config["thresholds"]["steps"] if step["value"] is not None]
    levels = levels if custom["thresholdsStyle"]["mode"] != "off" else []
    marked = axis(values, levels, config, unit, logarithmic)
    low, high = marked[0], marked[-1]
    labels = [units.shown(tick, unit) for tick in marked]
    left = max(LEFT, 8 + max(map(len, labels)) * 11 * svg.CHARACTER)
    right = width - 16

    def to_x(at):
        return left + (right - left) * at / recording["seconds"]

    def to_y(value):
        value = min(max(value, low), high)
        share = math.log(value / low) / math.log(high / low) if logarithmic else (value - low) / (high - low)
        return field - (field - 4) * share

    parts = []
    for tick, label in zip(marked, labels):
        parts.append(svg.path([(left, to_y(tick)), (right, to_y(tick))], stroke=GRID, fill="none"))
        parts.append(svg.text(left - 5, to_y(tick) + 4, label, 11, "end", FAINT))
    parts += time_axis(recording["seconds"], to_x, field)
    for at, colour in marks:
        line = [(to_x(at), 4.0), (to_x(at), field)]
        parts.append(svg.path(line, stroke=NAMED[colour], stroke_dasharray="3 3", fill="none", opacity="0.7"))
    parts += areas(layers, to_x, to_y, recording["step"], stacked)
    parts += lines_of(levels, marked, unit, to_x, to_y, recording["seconds"])
    legend = [svg.group([line], 0.0, field + BOTTOM + LEGEND_LINE * (number + 1)) for number, line in enumerate(legend)]
    return parts + legend


def axis(values, levels, config, unit, logarithmic):
    """The ticks of the vertical axis. It includes thresholds up to four times the largest value."""
    if logarithmic:
        positive = [value for value in values if value > 0] or [1.0]
        return units.powers(min(positive), max(positive))
    most = max(values, default=0)
    near = [level["value"] for level in levels if level["value"] <= 4 * most]
    most = config.get("max", max([most, *near]))
    least = config.get("min", min(values, default=0))
    if most <= least:
        most = least + (1 if least == 0 else abs(least) / 10)
    return units.ticks(least, most, unit)


def time_axis(seconds, to_x, field):
    """The horizontal axis: minutes and seconds since the start of the recording."""
    room = (to_x(seconds) - to_x(0)) / TIME_LABEL
    step = next((one for one in (10, 15, 30, 60, 120, 300, 600, 1800, 3600) if seconds / one <= room), 7200)
    parts = []
    for at in range(0, int(seconds) + 1, step):
        words = f"{at // 60}:{at % 60:02}"
        # A centred first label would overlap the lowest label of the vertical axis.
        anchor = "middle" if at else "start"
        parts.append(svg.text(to_x(at), field + 14, words, 10, anchor, FAINT))
    return parts


def stack(series):
    """Stacked areas as (series, points below, points). A missing value counts as 0."""
    times = sorted({at for one in series for at, _ in one.points})
    below, layers = {at: 0.0 for at in times}, []
    for one in series:
        own = dict(map(tuple, one.points))
        above = {at: below[at] + own.get(at, 0.0) for at in times}
        layers.append((one, list(below.items()), list(above.items())))
        below = above
    return layers


def areas(layers, to_x, to_y, step, stacked):
    """The lines, and with `stacked` the areas between them."""
    parts = []
    for one, below, points in layers:
        for run in runs(points, step):
            line = [(to_x(at), to_y(value)) for at, value in run]
            if below is not None:
                floor = dict(below)
                back = [(to_x(at), to_y(floor[at])) for at, _ in reversed(run)]
                parts.append(svg.path(line + back, closed=True, fill=one.colour, opacity="0.55"))
            if len(line) == 1:
                (x, y) = line[0]
                parts.append(svg.element("circle", cx=x, cy=y, r=1.5, fill=one.colour))
            else:
                parts.append(svg.path(line, fill="none", stroke=one.colour, stroke_width="1.5"))
    return parts


def lines_of(levels, marked, unit, to_x, to_y, seconds):
    """Thresholds as dashed lines. A threshold above the axis is written in the corner."""
    parts, above = [], 0
    for level in levels:
        colour, words = NAMED[level["color"]], units.shown(level["value"], unit)
        if level["value"] <= marked[-1]:
            line = [(to_x(0), to_y(level["value"])), (to_x(seconds), to_y(level["value"]))]
            parts.append(svg.path(line, stroke=colour, stroke_dasharray="6 4", stroke_width="1.5", fill="none"))
        else:
            parts.append(svg.text(to_x(seconds) - 4, 16 + 14 * above, f"threshold {words} ↑", 11, "end", colour))
            above += 1
    return parts


def legend_of(series, unit, width, num_lines):
    """A line for each series with its colour, name, mean and last value. The last line counts
    series that do not fit."""
    shown = series if len(series) <= num_lines else series[: num_lines - 1]
    last = [f"last {units.shown(one.last, unit)}" for one in shown]
    both = [f"mean {units.shown(one.mean, unit)} · {words}" for one, words in zip(shown, last)]

    def room(values):
        return width - 40 - len(values) * 11 * svg.CHARACTER

    # Omits the means if they would shorten names.
    fits = all(svg.fitted(one.name, room(values), 11) == one.name for one, values in zip(shown, both))
    lines = []
    for one, values in zip(shown, both if fits else last):
        parts = [
            svg.element("rect", x=10.0, y=-8.0, width=12, height=4, fill=one.colour),
            svg.text(28, -2, svg.fitted(one.name, room(values), 11), 11),
            svg.text(width - 10, -2, values, 11, "end", FAINT),
        ]
        lines.append(svg.group(parts))
    if len(shown) < len(series):
        lines.append(svg.text(28, -2, f"and {len(series) - len(shown)} more", 11, fill=FAINT))
    return lines
