"""The dashboards are as Grafana's linter has them, and as .ci/dashboards.py makes them; what they and the alerts show
is told by somebody.

Of the linter's rules (grafana/dashboard-linter) these are held here: the data source is a variable; `job` and
`instance` are variables that are asked anew as the time range changes, and stand in each selector; panels have a title,
a description and a unit; rates are over $__rate_interval; what is shown cannot be edited in place.
"""

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from .alerts.promtool import ROOT, promtool

FOLDER = ROOT / "charts" / "headrace" / "dashboards"
FILES = sorted(FOLDER.glob("*.json"))
BOARDS: dict[str, dict[str, Any]] = {file.stem: json.loads(file.read_text()) for file in FILES}
OF_PROMETHEUS = {"up", "process_cpu_seconds_total", "process_resident_memory_bytes"}
"""What Prometheus makes itself, or prometheus-client tells of a process."""
WORDS = re.compile(r"\b[a-z_]+(?=\{)|\b(?:headrace_\w+)")
UNITS = {"short", "s", "bytes", "Bps", "reqps", "ops", "cps", "percentunit"}


def generator() -> ModuleType:
    """.ci/dashboards.py."""
    sys.path.insert(0, str(ROOT / ".ci"))
    try:
        spec = importlib.util.spec_from_file_location("dashboards", ROOT / ".ci" / "dashboards.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT / ".ci"))
    return module


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (each for each in board["panels"] if each["type"] != "row")


def expressions(board: dict[str, Any]) -> Iterator[str]:
    return (target["expr"] for panel in panels(board) for target in panel["targets"])


def names(expression: str) -> set[str]:
    """The metrics of an expression, as they are declared: a histogram's without its ends."""
    found = set(WORDS.findall(expression))
    return {re.sub(r"(?<=_seconds)_(bucket|count|sum)$", "", name) for name in found}


def test_there_are_the_dashboards_that_the_generator_makes() -> None:
    made = {each.name: each.json() for each in generator().DASHBOARDS}
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
