"""The dashboards follow the rules of Grafana's linter and match .ci/dashboards.py; the metrics in them and in the
alerts exist.

Of the linter's rules (grafana/dashboard-linter) these are checked here: the data source is a variable; `job` and
`instance` are variables that are reloaded when the time range changes, and are in each selector; panels have a title, a
description and a unit; rates are over $__rate_interval; dashboards cannot be edited in place.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.cli.probe_metrics import ProbeMetrics
from headrace.metrics import declarations
from headrace_operator import metrics as operator_metrics
from headrace_spark.job import exposition as job_metrics
from kit.gate_scripts import gate_script

from .alerts.promtool import ROOT, declared, promtool

FOLDER = ROOT / "charts" / "headrace" / "dashboards"
FILES = sorted(FOLDER.glob("*.json"))
BOARDS: dict[str, dict[str, Any]] = {file.stem: json.loads(file.read_text()) for file in FILES}
OF_PROMETHEUS = {"up", "process_cpu_seconds_total", "process_resident_memory_bytes"}
"""Metrics that Prometheus creates itself, or that prometheus-client exports for a process."""
WORDS = re.compile(r"\b[a-z_]+(?=\{)|\b(?:headrace_\w+)")
UNITS = {"short", "s", "bytes", "Bps", "reqps", "ops", "cps", "percentunit"}


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (each for each in board["panels"] if each["type"] != "row")


def expressions(board: dict[str, Any]) -> Iterator[str]:
    return (target["expr"] for panel in panels(board) for target in panel["targets"])


def names(expression: str) -> set[str]:
    """Return the metrics in an expression by their declared names: a histogram's without suffixes."""
    found = set(WORDS.findall(expression))
    return {re.sub(r"(?<=_seconds)_(bucket|count|sum)$", "", name) for name in found}


def test_there_are_the_dashboards_that_the_generator_makes() -> None:
    made = {each.name: each.json() for each in gate_script("dashboards").DASHBOARDS}
    assert {file.stem: file.read_text() for file in FILES} == made, "run `make docs`"


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_keeps_its_address_and_fits_any_grafana(name: str) -> None:
    board = BOARDS[name]
    assert board["uid"] == f"headrace-{name}"
    assert board["editable"] is False
    assert board["tags"] == ["headrace"]
    source, *variables = board["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    assert {"namespace", "job", "instance"} <= {each["name"] for each in variables}
    for each in variables:
        assert each["datasource"]["uid"] == "${datasource}"
        assert each["refresh"] == 2, "as the time range changes"
        assert each["includeAll"]
        assert each["multi"]


@pytest.mark.parametrize("name", BOARDS)
def test_panels_say_what_they_show_and_in_what(name: str) -> None:
    found = list(panels(BOARDS[name]))
    assert len({each["id"] for each in BOARDS[name]["panels"]}) == len(BOARDS[name]["panels"])
    for panel in found:
        assert panel["title"]
        assert panel["description"].endswith(".")
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["unit"] in UNITS
        assert defaults["thresholds"]["steps"][0]["value"] is None
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["targets"]
        assert all(each["legendFormat"] for each in panel["targets"])
        assert len({each["refId"] for each in panel["targets"]}) == len(panel["targets"])


@pytest.mark.parametrize("name", BOARDS)
def test_panels_lie_beside_each_other(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARDS[name]["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


@pytest.mark.parametrize("name", BOARDS)
def test_queries_are_of_what_was_chosen(name: str) -> None:
    for expression in expressions(BOARDS[name]):
        selectors = re.findall(r"(\w+)\{([^}]*)\}", expression)
        assert {metric for metric, _ in selectors} == set(re.findall(r"\b(?:headrace|process)_\w+|\bup\b", expression))
        for _, labels in selectors:
            for label in ("namespace", "job", "instance"):
                assert f'{label}=~"${label}"' in labels, expression
        for window in re.findall(r"\[([^\]]*)\]", expression):
            assert window == "$__rate_interval", expression


def test_prometheus_understands_every_query(tmp_path: Path) -> None:
    if promtool() is None:
        pytest.skip("needs promtool: .ci/tools gets it")
    found = [each for board in BOARDS.values() for each in expressions(board)]
    assert len(found) > 100
    rules = [
        {"record": f"a:b{number}", "expr": each.replace("$__rate_interval", "5m")} for number, each in enumerate(found)
    ]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = subprocess.run([str(promtool()), "check", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_documentation_shows_each_dashboard() -> None:
    text = (ROOT / "docs" / "observability.md").read_text()
    shown = {path: title for title, path in re.findall(r"^!\[(.*)\]\((.*)\)$", text, re.MULTILINE)}
    assert shown == {f"pictures/dashboard-{name}.png": board["title"] for name, board in BOARDS.items()}
    for path in shown:
        picture = (ROOT / "docs" / path).read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert len(picture) < 200_000, path


# --- names

OPERATOR = {operator_metrics.PREFIX + name for name in (*operator_metrics.FIGURES, operator_metrics.DURATION)}
JOB = {job_metrics.PREFIX + name for name in job_metrics.METRICS}
DECLARED = {metric.name for metric in declarations.ALL} | OPERATOR | JOB | OF_PROMETHEUS
NOT_SHOWN = {
    # For the manual inspection of one container.
    "headrace_container_epoch",
    "headrace_container_end_position",
    "headrace_container_committed_position",
    "headrace_container_stored_bytes",
    # Covered by a histogram.
    "headrace_operator_reconciles_total",
    "headrace_operator_reconcile_seconds_total",
    "headrace_operator_unchanged_total",
}
"""Metrics that neither a dashboard nor an alert uses."""


def test_what_dashboards_and_alerts_look_at_is_told_and_all_that_is_told_is_looked_at() -> None:
    shown = {name for board in BOARDS.values() for each in expressions(board) for name in names(each)}
    shown |= {name for alert in declared().values() for name in names(alert["expr"])}
    choices = {each["query"]["query"] for board in BOARDS.values() for each in board["templating"]["list"][1:]}
    chosen = {name for each in choices for name in re.findall(r"headrace_\w+", each)}
    assert shown | chosen <= DECLARED
    assert DECLARED - shown - chosen == NOT_SHOWN


def test_labels_of_queries_are_told() -> None:
    """The labels in selectors, besides those that Prometheus adds."""
    labels = {metric.name: set(metric.labels) | {"node"} for metric in declarations.ALL}
    labels |= {operator_metrics.PREFIX + name: set(each) for name, (each, _) in operator_metrics.FIGURES.items()}
    labels[operator_metrics.PREFIX + operator_metrics.DURATION] = set(operator_metrics.DURATION_LABELS)
    labels |= {job_metrics.PREFIX + name: {*each, "streamjob"} for name, (each, _) in job_metrics.METRICS.items()}
    added = {"namespace", "job", "instance"}
    texts = [each for board in BOARDS.values() for each in expressions(board)]
    texts += [str(alert["expr"]) for alert in declared().values()]
    for text in texts:
        for metric, selector in re.findall(r"(headrace_\w+)\{([^}]*)\}", text):
            (name,) = names(metric)
            asked = set(re.findall(r"(\w+)(?:=~|!=|!~|=)", selector))
            assert asked - added <= labels[name], text


def test_what_the_documentation_calls_a_metric_is_one() -> None:
    told = ProbeMetrics().registry.collect()
    of_probe = {each.name + ("_total" if each.type == "counter" else "") for each in told}
    pages = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
    for page in pages:
        named = {each for each in re.findall(r"`(headrace_[a-z_]+)", page.read_text()) if each.count("_") > 1}
        ours = {each for each in named if not each.startswith(("headrace_spark", "headrace_operator."))}
        unknown = {name for each in ours for name in names(each)} - DECLARED - of_probe
        assert unknown == set(), page.name


def kind(name: str) -> str:
    return "counter" if name.endswith("_total") else "gauge"


def rows() -> set[str]:
    """Return the tables of the operator's and the jobs' metrics that docs/observability.md has to contain."""
    told = [
        (operator_metrics.PREFIX + name, kind(name), labels, what)
        for name, (labels, what) in operator_metrics.FIGURES.items()
    ]
    duration = operator_metrics.PREFIX + operator_metrics.DURATION
    told.append((duration, "histogram", operator_metrics.DURATION_LABELS, operator_metrics.DURATION_HELP))
    told += [
        (job_metrics.PREFIX + name, "histogram" if name == "batch_seconds" else kind(name), labels, what)
        for name, (labels, what) in job_metrics.METRICS.items()
    ]
    return {
        f"| `{name}` | {type_} | {', '.join(f'`{label}`' for label in labels)} | {what.removesuffix('.')} |"
        for name, type_, labels, what in told
    }


def test_the_documentation_lists_the_metrics_of_operator_and_jobs() -> None:
    text = (ROOT / "docs" / "observability.md").read_text()
    assert set(re.findall(r"^\| `headrace_(?:operator|job)_\w+` \|.*$", text, re.MULTILINE)) == rows()
