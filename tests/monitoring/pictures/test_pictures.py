#!/usr/bin/env python3
"""Draws a small dashboard with a small recording, and checks the picture. Prints "checks: N passed
N failed"."""

import json
import pathlib
import sys
import unittest
import xml.etree.ElementTree as ElementTree

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]
sys.path[:0] = [str(HERE), str(HERE.parent), str(REPOSITORY / "charts/roundhouse/dashboards/source")]

import axes  # noqa: E402
import grafana  # noqa: E402
import make  # noqa: E402
import record  # noqa: E402
import units  # noqa: E402
from grafana import GREEN, RED, YELLOW, query, steps  # noqa: E402

RECORDINGS = HERE.parent / "recorded"
SVG = "{http://www.w3.org/2000/svg}"


def dashboard():
    goodput = steps((None, RED), (0.5, YELLOW), (0.8, GREEN))
    panels = [
        grafana.row("Summary"),
        grafana.stat("Step", "Steps.", [query("step", "step")], "none"),
        grafana.stat("Goodput", "Share.", [query('goodput{job="$job"}', "goodput")], "percentunit", goodput, decimals=1),
        grafana.timeseries("Wait", "Wait.", [query("wait", "rank {{rank}}")], "s", thresholds=steps((None, GREEN), (60, RED))),
        grafana.repeated(grafana.timeseries("Rank $rank", "Sections.", [query("s", "{{section}}")], "s", stacked=True), "rank"),
        grafana.timeseries("Queue", "Due.", [query("queue", "due")], "none"),
        grafana.row("All"),
        grafana.table(
            "Jobs",
            "All.",
            [("active", "a", "none", None), ("goodput", "b", "percentunit", goodput)],
            by=("cluster", "namespace", "job"),
        ),
    ]
    variables = [grafana.label_variable(name, name, f"label_values(up, {name})") for name in ("namespace", "job")]
    marks = [grafana.annotation("Incidents", "i", "red", "Incident", "{{reason}}")]
    return grafana.dashboard("d", "Sample", "A small one.", variables=variables, panels=panels, annotations=marks)


class Picture(unittest.TestCase):
    def setUp(self):
        recording = json.loads((HERE / "fixture.json").read_text())
        self.root = ElementTree.fromstring(make.draw(dashboard(), recording))
        self.words = [one.text for one in self.root.iter(f"{SVG}text")]

    def panel(self, title):
        """The group of the panel with this title."""
        groups = [one for one in self.root.iter(f"{SVG}g") if title in [text.text for text in one.findall(f"{SVG}text")]]
        self.assertEqual(len(groups), 1, title)
        return groups[0]

    def test_picture_has_title_variables_rows_and_panels(self):
        for words in ("Sample", "A small one.", "namespace ml, job gpt2", "Summary", "All", "Incidents"):
            self.assertIn(words, self.words)
        for title in ("Step", "Goodput", "Wait", "Rank 0", "Rank 1", "Queue", "Jobs"):
            self.panel(title)

    def test_stat_shows_the_newest_value_with_unit_and_colour(self):
        (value,) = [one for one in self.panel("Goodput").iter(f"{SVG}text") if one.text == "90.0%"]
        self.assertEqual(value.get("fill"), "#1a7f37")
        self.assertIn("150", self.words)

    def test_data_of_another_job_is_labelled(self):
        self.assertEqual(self.words.count("job script"), 1)

    def test_legend_has_sorted_names_with_mean_and_last_value(self):
        words = [one.text for one in self.panel("Wait").iter(f"{SVG}text")]
        self.assertLess(words.index("rank 2"), words.index("rank 10"))
        self.assertIn("mean 100 ms · last 100 ms", words)

    def test_narrow_legend_has_the_last_value_only(self):
        series = make.panels.series_of(dashboard()["panels"][3], entry("4"))
        narrow, wide = ("".join(axes.legend_of(series, "s", width, 2)) for width in (150, 400))
        self.assertIn("last 250 ms", narrow)
        self.assertNotIn("mean", narrow)
        self.assertIn("mean", wide)

    def test_gap_breaks_a_line(self):
        lines = [one for one in self.panel("Wait").iter(f"{SVG}polyline") if one.get("stroke-width") == "1.5"]
        self.assertEqual(len(lines), 3)

    def test_threshold_above_the_axis_is_written_as_text(self):
        self.assertIn("threshold 1 min ↑", self.words)

    def test_incident_is_one_mark_at_its_start_on_each_panel(self):
        marks = [one for one in self.panel("Wait").iter(f"{SVG}polyline") if one.get("stroke-dasharray") == "3 3"]
        self.assertEqual(len(marks), 2)

    def test_copies_of_a_repeated_panel_share_its_position(self):
        frames = [self.panel(title).find(f"{SVG}rect") for title in ("Rank 0", "Rank 1", "Queue")]
        widths = [float(frame.get("width")) for frame in frames]
        self.assertEqual(widths[0], widths[1])
        self.assertLess(widths[0], widths[2] / 1.9)

    def test_areas_are_stacked(self):
        below = axes.stack(make.panels.series_of(dashboard()["panels"][4], entry("5")))
        self.assertEqual([one.name for one, _, _ in below], ["data", "forward"])
        self.assertEqual(below[1][2], [(0, 1.0), (2, 3.0), (4, 3.0)])

    def test_panel_without_data_shows_no_data(self):
        self.assertIn("No data", [one.text for one in self.panel("Queue").iter(f"{SVG}text")])

    def test_table_has_a_row_for_each_job_and_omits_empty_labels(self):
        words = [one.text for one in self.panel("Jobs").iter(f"{SVG}text")]
        for word in ("namespace", "job", "active", "goodput", "gpt2", "script", "45%"):
            self.assertIn(word, words)
        self.assertNotIn("cluster", words)

    def test_lines_stay_within_their_panel(self):
        for title in ("Wait", "Rank 0", "Queue", "Jobs"):
            panel = self.panel(title)
            width = float(panel.find(f"{SVG}rect").get("width"))
            for line in panel.iter(f"{SVG}polyline"):
                xs = [float(point.split(",")[0]) for point in line.get("points").split()]
                self.assertTrue(0 <= min(xs) and max(xs) <= width, title)


def entry(number):
    return json.loads((HERE / "fixture.json").read_text())["panels"][number][0]


class Units(unittest.TestCase):
    def test_values_have_the_units_of_grafana(self):
        for value, unit, words in (
            (0, "s", "0 s"),
            (0.0123, "s", "12.3 ms"),
            (90, "s", "1.5 min"),
            (0.956, "percentunit", "95.6%"),
            (97, "percent", "97%"),
            (3 * 2**30, "bytes", "3 GiB"),
            (2048, "mbytes", "2 GiB"),
            (0, "bytes", "0 B"),
            (12_345, "short", "12.3 K"),
            (0.5, "short", "0.5"),
            (3e-4, "sci", "3.00e-4"),
            (2, "none", "2"),
            (1.25, "ops", "1.25 ops/s"),
            (58, "celsius", "58 °C"),
        ):
            self.assertEqual(units.shown(value, unit), words)
        self.assertEqual(units.shown(0.5, "percentunit", 1), "50.0%")
        self.assertRaises(ValueError, units.shown, 1, "furlong")

    def test_ticks_are_round_and_enclose_the_values(self):
        self.assertEqual(units.ticks(0, 0.37, "short"), [0, 0.1, 0.2, 0.30000000000000004, 0.4])
        self.assertEqual(units.ticks(0, 1, "none"), [0, 1])
        self.assertEqual(units.ticks(0, 200, "s"), [0, 60, 120, 180, 240])
        self.assertEqual(units.powers(0.002, 0.3), [0.001, 0.01, 0.1, 1.0])
        for most in (1e-9, 0.4, 3, 7e11):
            for unit in ("none", "s", "bytes", "percentunit"):
                marked = units.ticks(0, most, unit)
                self.assertTrue(marked[-1] >= most * (1 - 1e-9) and 2 <= len(marked) <= 7, (most, unit, marked))


class Recording(unittest.TestCase):
    def test_recording_has_the_data_of_the_first_job_with_data(self):
        requests = []

        def get(path, **parameters):
            requests.append((path, parameters))
            values = [[110, "1.23456789"], [112, "NaN"], [114, "+Inf"], [116, "2"]]
            found = [{"metric": {"__name__": "m", "rank": "0"}, "values": values}]
            return {"result": found if '"second"' in parameters["query"] else []}

        recorder = record.Recorder(get, "ml", ["first", "second"], 100, 280)
        panel = {"targets": [{"refId": "A", "expr": 'm{job="$job"}'}]}
        kept = [{"labels": {"rank": "0"}, "points": [[10, 1.23457], [16, 2.0]]}]
        self.assertEqual(recorder.panel(panel), [{"job": "second", "value": None, "targets": {"A": kept}}])
        self.assertEqual([parameters["step"] for _, parameters in requests], [2, 2])
        self.assertEqual(recorder.panel({**panel, "repeat": "rank"})[0]["value"], "0")


class Kept(unittest.TestCase):
    def test_pictures_in_the_docs_are_up_to_date(self):
        for path in RECORDINGS.glob("*.json"):
            shown = json.loads((make.DASHBOARDS / path.name).read_text())
            picture = REPOSITORY / f"docs/pictures/dashboard-{path.stem}.svg"
            drawn = make.draw(shown, json.loads(path.read_text()))
            self.assertTrue(picture.read_text() == drawn, f"{picture.name}: run make generate PARTS=pictures")


def main():
    found = unittest.main(exit=False, verbosity=0).result
    bad = len(found.failures) + len(found.errors)
    print(f"checks: {found.testsRun - bad} passed {bad} failed")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
