"""Builds Grafana's dashboard JSON: panels, variables, annotations, links, and the positions of
panels in a grid.

Schema:
https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
"""

# The schema of Grafana 10.4. Newer versions migrate a dashboard when they load it.
SCHEMA_VERSION = 39
WIDTH = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
GREEN, YELLOW, RED, BLUE = "green", "yellow", "red", "blue"


def query(expr, legend="__auto", instant=False):
    """A PromQL query. `legend` is the name of each series, with labels as {{label}}."""
    return {"expr": " ".join(expr.split()), "legend": legend, "instant": instant}


def steps(*pairs):
    """Thresholds as pairs of a value and the colour from this value. The first value is None."""
    return {"mode": "absolute", "steps": [{"color": colour, "value": value} for value, colour in pairs]}


PLAIN = steps((None, GREEN))
# The thresholds of the share of GPU time in which jobs train.
GOODPUT = steps((None, RED), (0.5, YELLOW), (0.8, GREEN))
# The initial value of a variable for which Grafana selects the first value that it finds.
NOTHING = {"selected": False, "text": "", "value": ""}


def _targets(queries, form):
    return [
        {
            "datasource": SOURCE,
            "editorMode": "code",
            "expr": one["expr"],
            "format": form,
            "instant": one["instant"],
            "range": not one["instant"],
            "legendFormat": one["legend"],
            "refId": chr(ord("A") + number),
        }
        for number, one in enumerate(queries)
    ]


def _panel(kind, title, description, queries, size, form="time_series"):
    width, height = size
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": SOURCE,
        "gridPos": {"h": height, "w": width, "x": 0, "y": 0},
        "targets": _targets(queries, form),
    }


def row(title):
    """The heading of a group of panels."""
    return {"type": "row", "title": title, "collapsed": False, "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": 0}, "panels": []}


def stat(title, description, queries, unit, thresholds=PLAIN, width=4, decimals=None, text="value", graph=True):
    """A panel with one or several numbers and a small graph behind them."""
    panel = _panel("stat", title, description, queries, (width, 4))
    defaults = {"unit": unit, "thresholds": thresholds, "mappings": [], "color": {"mode": "thresholds"}}
    if decimals is not None:
        defaults["decimals"] = decimals
    panel["fieldConfig"] = {"defaults": defaults, "overrides": []}
    panel["options"] = {
        "colorMode": "value",
        "graphMode": "area" if graph else "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": text,
        "wideLayout": True,
        "showPercentChange": False,
        "percentChangeColorMode": "standard",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }
    return panel


def timeseries(
    title,
    description,
    queries,
    unit,
    *,
    stacked=False,
    bars=False,
    thresholds=None,
    least=0,
    most=None,
    width=12,
    height=8,
    log=False,
):
    """A panel with lines over time, or with stacked areas. `thresholds` are drawn as lines."""
    panel = _panel("timeseries", title, description, queries, (width, height))
    custom = {
        "drawStyle": "bars" if bars else "line",
        "lineWidth": 1,
        "fillOpacity": 60 if stacked else (80 if bars else 10),
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "dashed" if thresholds else "off"},
        "scaleDistribution": {"type": "log", "log": 10} if log else {"type": "linear"},
    }
    defaults = {
        "unit": unit,
        "color": {"mode": "palette-classic"},
        "custom": custom,
        "mappings": [],
        "thresholds": thresholds or PLAIN,
    }
    if least is not None and not log:
        defaults["min"] = least
    if most is not None:
        defaults["max"] = most
    panel["fieldConfig"] = {"defaults": defaults, "overrides": []}
    panel["options"] = {
        "legend": {"calcs": ["mean", "lastNotNull"], "displayMode": "table", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return panel


def table(title, description, columns, *, by, link=None, height=9):
    """A table with one row for each set of the labels `by`. `columns`: (name, query, unit,
    thresholds or None)."""
    queries = [query(expr, instant=True) for _, expr, _, _ in columns]
    panel = _panel("table", title, description, queries, (WIDTH, height), form="table")
    overrides, names, hidden = [], {}, {"Time": True}
    for number, (name, _, unit, thresholds) in enumerate(columns):
        names[f"Value #{chr(ord('A') + number)}"] = name
        properties = [{"id": "unit", "value": unit}]
        if thresholds:
            properties += [
                {"id": "thresholds", "value": thresholds},
                {"id": "custom.cellOptions", "value": {"type": "color-text"}},
            ]
        overrides.append({"matcher": {"id": "byName", "options": name}, "properties": properties})
    if link:
        field, title_, url = link
        target = [{"title": title_, "url": url, "targetBlank": False}]
        overrides.append({"matcher": {"id": "byName", "options": field}, "properties": [{"id": "links", "value": target}]})
    defaults = {
        "color": {"mode": "thresholds"},
        "custom": {"align": "auto", "cellOptions": {"type": "auto"}, "filterable": True, "inspect": False},
        "mappings": [],
        "thresholds": PLAIN,
    }
    panel["fieldConfig"] = {"defaults": defaults, "overrides": overrides}
    panel["options"] = {"showHeader": True, "cellHeight": "sm", "frameIndex": 0}
    order = {label: number for number, label in enumerate(by)}
    panel["transformations"] = [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {"excludeByName": hidden, "indexByName": order, "renameByName": names}},
    ]
    return panel


def repeated(panel, variable, per_row=4):
    """Repeats a panel for each selected value of a variable."""
    return {**panel, "repeat": variable, "repeatDirection": "h", "maxPerRow": per_row}


def data_source(name, label, kind):
    """A variable that selects a data source of a kind."""
    return {
        "name": name,
        "label": label,
        "type": "datasource",
        "query": kind,
        "regex": "",
        "refresh": 1,
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": [],
        "current": NOTHING,
        "skipUrlSync": False,
    }


def label_variable(name, label, values, *, every=False, several=False, default=None, numeric=False):
    """A variable with the values of a label, queried again when the time range changes. With
    `every`, all are selected first."""
    current = {"selected": True, "text": "All", "value": "$__all"} if every else NOTHING
    if several and every:
        current = {"selected": True, "text": ["All"], "value": ["$__all"]}
    if default is not None:
        current = {"selected": True, "text": [default], "value": [default]}
    variable = {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"qryType": 1, "query": values, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
        "regex": "",
        "refresh": 2,
        "hide": 0,
        "sort": 3 if numeric else 1,
        "includeAll": every,
        "multi": several,
        "options": [],
        "current": current,
        "skipUrlSync": False,
    }
    if every:
        # This also matches series without the label: a Prometheus of a single cluster sets no label
        # `cluster`.
        variable["allValue"] = ".*"
    return variable


def annotation(name, expr, colour, title, text):
    """Marks on all panels at the times at which the expression has a value."""
    return {
        "name": name,
        "datasource": SOURCE,
        "enable": True,
        "hide": False,
        "iconColor": colour,
        "expr": " ".join(expr.split()),
        "step": "15s",
        "titleFormat": title,
        "textFormat": text,
        "useValueForTime": False,
    }


def link(title, url, icon="external link", tooltip=""):
    """A link at the top of a dashboard. It keeps the time range."""
    return {
        "type": "link",
        "title": title,
        "url": url,
        "icon": icon,
        "tooltip": tooltip,
        "tags": [],
        "asDropdown": False,
        "includeVars": False,
        "keepTime": True,
        "targetBlank": False,
    }


def dashboard(uid, title, description, *, variables, panels, annotations=(), links=(), span="6h"):
    """A whole dashboard. It numbers the panels and places them from left to right, row by row."""
    own = {
        "name": "Annotations & Alerts",
        "builtIn": 1,
        "datasource": {"type": "grafana", "uid": "-- Grafana --"},
        "enable": True,
        "hide": True,
        "iconColor": "rgba(0, 211, 255, 1)",
        "type": "dashboard",
    }
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["roundhouse"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": f"now-{span}", "to": "now"},
        "timepicker": {},
        "fiscalYearStartMonth": 0,
        "weekStart": "",
        "links": list(links),
        "annotations": {"list": [own, *annotations]},
        "templating": {"list": variables},
        "panels": placed(panels),
    }


def placed(panels):
    """Panels with ids and positions: from left to right, with a new line for a panel that does not
    fit and for each row."""
    x = y = line = 0
    result = []
    for number, panel in enumerate(panels, start=1):
        place = dict(panel["gridPos"])
        if x + place["w"] > WIDTH or panel["type"] == "row":
            x, y, line = 0, y + line, 0
        place["x"], place["y"] = x, y
        x, line = x + place["w"], max(line, place["h"])
        result.append({"id": number, **panel, "gridPos": place})
    return result
