"""Grafana's dashboards as JSON: the model of panels, rows and dashboards.

Every query has `namespace`, `job` and `instance` (and `node`, if the dashboard has that variable) in each selector,
written as `{S}`. Rates are over $__rate_interval. Sizes are in Grafana's grid, which is 24 wide.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

SCHEMA: Final = 39
"""The schema version of Grafana 10.4 and newer."""
WIDTH: Final = 24
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
GOOD, BAD, WORSE = "green", "orange", "red"

Query = tuple[str, str]
"""An expression, and the legend of its series."""
Steps = Sequence[tuple[float, str]]
"""Pairs of a value and the colour from that value on."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A number (`stat`) or a graph (`timeseries`)."""

    title: str
    description: str
    unit: str
    """Grafana's name of the unit: s, bytes, Bps, reqps, percentunit, short ..."""
    queries: Sequence[Query]
    type: str = "timeseries"
    width: int = 8
    height: int = 8
    steps: Steps = ()
    stacked: bool = False
    lowest: float | None = 0
    highest: float | None = None


def stat(title: str, description: str, unit: str, query: str, *, steps: Steps, width: int = 3) -> Panel:
    """Return a panel with one coloured number."""
    return Panel(title, description, unit, [(query, title)], type="stat", width=width, height=4, steps=steps)


def graph(title: str, description: str, unit: str, *queries: Query, width: int = 8, **more: Any) -> Panel:
    """Return a panel with lines over time."""
    return Panel(title, description, unit, queries, width=width, **more)


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a dashboard: the values of a label, from which the user chooses."""

    name: str
    query: str
    every: str | None = ".+"
    """The value for "all"; `.*` includes series without the label; None: the list of all values."""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard."""

    name: str
    """The name of its file, and of its stable address: headrace-NAME."""
    title: str
    description: str
    of: str
    """A metric that all targets of the dashboard have: its labels' values are offered in the variables."""
    rows: Sequence[tuple[str, Sequence[Panel]]]
    variables: Sequence[Variable] = field(default_factory=tuple)

    @property
    def all_variables(self) -> Sequence[Variable]:
        """All variables, including those that every dashboard has."""
        return (
            Variable("namespace", f"label_values({self.of}, namespace)", every=".*"),
            Variable("job", f'label_values({self.of}{{namespace=~"$namespace"}}, job)', every=None),
            Variable("instance", f'label_values({self.of}{{namespace=~"$namespace",job=~"$job"}}, instance)'),
            *self.variables,
        )

    def json(self) -> str:
        """Return the content of the dashboard's file."""
        return json.dumps(_dashboard(self), indent=1, ensure_ascii=False) + "\n"


def selector(variables: Sequence[Variable]) -> str:
    """Return the label matchers that replace `{S}`."""
    return ",".join(f'{each.name}=~"${each.name}"' for each in variables)


def _dashboard(board: Dashboard) -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    top = 0
    chosen = selector([each for each in board.all_variables if each.name in ("namespace", "job", "instance", "node")])
    for title, row in board.rows:
        panels.append(_at({"type": "row", "title": title, "collapsed": False, "panels": []}, 0, top, WIDTH, 1))
        left, top, height = 0, top + 1, 0
        for panel in row:
            if left + panel.width > WIDTH:
                left, top, height = 0, top + height, 0
            panels.append(_at(_panel(panel, chosen), left, top, panel.width, panel.height))
            left, height = left + panel.width, max(height, panel.height)
        top += height
    for number, each in enumerate(panels, 1):
        each["id"] = number
    return {
        "uid": f"headrace-{board.name}",
        "title": board.title,
        "description": board.description,
        "tags": ["headrace"],
        "schemaVersion": SCHEMA,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": [_LINK],
        "templating": {"list": [_DATASOURCE_VARIABLE, *map(_variable, board.all_variables)]},
        "annotations": {"list": []},
        "panels": panels,
    }


_LINK: Final = {
    "type": "dashboards",
    "title": "Headrace",
    "tags": ["headrace"],
    "asDropdown": True,
    "includeVars": True,
    "keepTime": True,
}
_DATASOURCE_VARIABLE: Final = {
    "name": "datasource",
    "label": "Data source",
    "type": "datasource",
    "query": "prometheus",
    "refresh": 1,
    "hide": 0,
}


def _variable(variable: Variable) -> dict[str, Any]:
    return {
        "name": variable.name,
        "label": variable.name.capitalize(),
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": variable.query, "refId": variable.name},
        "definition": variable.query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": variable.every,
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _at(panel: dict[str, Any], left: int, top: int, width: int, height: int) -> dict[str, Any]:
    return {"id": 0, **panel, "gridPos": {"x": left, "y": top, "w": width, "h": height}}


def _panel(panel: Panel, chosen: str) -> dict[str, Any]:
    steps = [{"value": None, "color": GOOD}, *({"value": value, "color": colour} for value, colour in panel.steps)]
    bounds = {"min": panel.lowest, "max": panel.highest}
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "thresholds": {"mode": "absolute", "steps": steps},
        **{name: value for name, value in bounds.items() if value is not None},
    }
    if panel.type == "timeseries":
        defaults["custom"] = {
            "lineWidth": 1,
            "fillOpacity": 20 if panel.stacked else 5,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacked else "none"},
            "thresholdsStyle": {"mode": "dashed" if panel.steps else "off"},
        }
    is_instant = panel.type != "timeseries"
    return {
        "type": panel.type,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _options(panel),
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": DATASOURCE,
                "expr": expression.replace("{S}", chosen),
                "legendFormat": legend,
                "instant": is_instant,
                "range": not is_instant,
            }
            for number, (expression, legend) in enumerate(panel.queries)
        ],
    }


def _options(panel: Panel) -> dict[str, Any]:
    if panel.type == "stat":
        reduced = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        return {"reduceOptions": reduced, "colorMode": "background", "graphMode": "none", "textMode": "value"}
    return {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
