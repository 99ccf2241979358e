"""The series of a panel with their names, colours and thresholds."""

import re

# Grafana's palette "classic", with a darker yellow for a white background.
PALETTE = ("#5b9a3c", "#d99e0b", "#3fa7c4", "#e8711a", "#d9432f", "#1f60c4", "#a8419b", "#6a55a8", "#3d6b2f", "#8a6d00")
NAMED = {"green": "#1a7f37", "yellow": "#9a6700", "red": "#cf222e", "blue": "#1f60c4"}


class Series:
    """A line with its name, its points (seconds, value) and its colour."""

    def __init__(self, name, labels, points, colour):
        self.name, self.labels, self.points, self.colour = name, labels, points, colour

    @property
    def last(self):
        return self.points[-1][1]

    @property
    def mean(self):
        return sum(value for _, value in self.points) / len(self.points)


def named(template, labels):
    """Fills a legend such as `rank {{rank}}` with the labels of a series."""
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: labels.get(match[1], ""), template).strip() or "Value"


def series_of(panel, entry):
    """The series of a panel in the order of its queries. The series of one query are sorted by
    name."""
    found = []
    for target in panel["targets"]:
        of_target = [(named(target["legendFormat"], one["labels"]), one) for one in entry["targets"].get(target["refId"], [])]
        found += sorted(of_target, key=lambda pair: sort_key(pair[0]))
    return [
        Series(name, one["labels"], one["points"], PALETTE[number % len(PALETTE)]) for number, (name, one) in enumerate(found)
    ]


def sort_key(name):
    """A key that sorts numbers within names as numbers: rank 2 comes before rank 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def colour_of(value, thresholds):
    """The colour of the last threshold that the value reaches."""
    reached = [step["color"] for step in thresholds["steps"] if step["value"] is None or value >= step["value"]]
    return NAMED[reached[-1]]


def runs(points, step):
    """Splits points at gaps, because a missing point breaks the line."""
    found = []
    for point in points:
        if found and point[0] - found[-1][-1][0] <= 1.5 * step:
            found[-1].append(point)
        else:
            found.append([point])
    return found
