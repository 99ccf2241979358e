#!/usr/bin/env python3
"""Writes the dashboards to FILE as TypeScript values with the types of @grafana/schema, so that tsc
checks them: types.py FILE

A panel has the options and the field configuration of its own kind. JSON has strings in place of
enums, and `Plain` allows them.
"""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
DASHBOARDS = HERE.parents[2] / "charts/roundhouse/dashboards"
PANELS = {"timeseries": "TimeSeries", "stat": "Stat", "table": "Table"}
# Kinds of panels whose schema has a type for the field configuration, too.
WITH_FIELDS = {"timeseries"}


def head():
    lines = ["import type { Dashboard, Panel, RowPanel, TableFieldOptions } from '@grafana/schema';"]
    for kind, name in PANELS.items():
        path = f"@grafana/schema/dist/esm/raw/composable/{kind}/panelcfg/x/{name}PanelCfg_types.gen"
        lines.append(f"import type * as {kind} from '{path}';")
    lines += [
        "type Plain<T> = T extends string ? `${T}` : T extends (infer E)[] ? Plain<E>[]",
        "  : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;",
        "type Whole = Plain<Omit<Dashboard, 'panels'>>;",
        "type Base = Plain<Omit<Panel, 'options' | 'fieldConfig' | 'targets'>>;",
        "type Fields<Custom> = { defaults: Plain<Omit<NonNullable<Panel['fieldConfig']>['defaults'], 'custom'>> & "
        "{ custom?: Plain<Custom> }; overrides: Plain<NonNullable<Panel['fieldConfig']>['overrides']> };",
    ]
    return lines


def value(data):
    return json.dumps(data, ensure_ascii=False)


def main():
    lines = head()
    for path in sorted(DASHBOARDS.glob("*.json")):
        dashboard = json.loads(path.read_text())
        panels = dashboard.pop("panels")
        for mark in dashboard["annotations"]["list"]:
            # These fields belong to annotations of the Prometheus data source.
            for field in ("expr", "step", "titleFormat", "textFormat", "useValueForTime"):
                mark.pop(field, None)
        lines.append(f"export const {path.stem}: Whole = {value(dashboard)};")
        for panel in panels:
            name = f"{path.stem}_{panel['id']}"
            if panel["type"] == "row":
                lines.append(f"export const {name}: Plain<RowPanel> = {value(panel)};")
                continue
            kind = panel["type"]
            custom = f"{kind}.FieldConfig" if kind in WITH_FIELDS else "TableFieldOptions" if kind == "table" else "never"
            options, fields = panel.pop("options"), panel.pop("fieldConfig")
            # The fields of a target belong to its data source, so the schema of dashboards lacks
            # them.
            panel.pop("targets")
            lines.append(f"export const {name}: Base = {value(panel)};")
            lines.append(f"export const {name}_options: Plain<{kind}.Options> = {value(options)};")
            lines.append(f"export const {name}_fields: Fields<{custom}> = {value(fields)};")
    pathlib.Path(sys.argv[1]).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
