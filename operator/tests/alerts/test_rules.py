"""The alerts fire, clear, and stay silent through a rolling restart; each says what to do."""

import re
import subprocess
from pathlib import Path

import pytest

from .cases import CASES
from .promtool import ROOT, RULES, Scenario, declared, notation, promtool, run
from .rolling_restart import GAUGES, OPERATOR, ROLLING_RESTART

RUNBOOKS = ROOT / "docs" / "runbooks"
ALERTS = declared()
SECTIONS = ("## What it means", "## How to look", "## What to do")

needs_promtool = pytest.mark.skipif(promtool() is None, reason="needs promtool: .ci/tools gets it")


@needs_promtool
def test_prometheus_takes_the_rules() -> None:
    done = subprocess.run([str(promtool()), "check", "rules", *map(str, RULES)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


@needs_promtool
def test_each_alert_fires_and_clears(tmp_path: Path) -> None:
    done = run(CASES, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_no_alert_fires_in_a_rolling_restart(tmp_path: Path) -> None:
    done = run([ROLLING_RESTART], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_an_alert_that_does_not_fire_as_it_should_is_found(tmp_path: Path) -> None:
    wrong = Scenario("wrong", {'headrace_catalog_damaged{node="1"}': [1.0] * 20}, {3: []})
    done = run([wrong], tmp_path)
    assert done.returncode != 0
    assert "HeadraceCatalogDamaged" in done.stdout + done.stderr


def test_each_alert_has_its_case() -> None:
    assert [each.name for each in CASES] == list(ALERTS)


def test_the_rolling_restart_has_all_metrics_that_alerts_look_at() -> None:
    used = {name for alert in ALERTS.values() for name in re.findall(r"\bheadrace_\w+", alert["expr"])}
    shown = {name.partition("{")[0] for name in (*GAUGES, *OPERATOR)}
    assert used == shown


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_what_is_wrong_and_where_to_read_on(name: str) -> None:
    alert = ALERTS[name]
    assert re.fullmatch(r"Headrace[A-Z]\w+", name)
    assert set(alert) <= {"alert", "expr", "for", "labels", "annotations"}
    assert alert["labels"]["severity"] in {"warning", "critical"}
    told = alert["annotations"]
    assert set(told) == {"summary", "description", "runbook_url"}
    assert not told["summary"].endswith(".")
    assert told["description"].endswith(".")
    assert told["runbook_url"] == f"https://headrace.dev/docs/runbooks/{name}.md"


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_has_a_runbook(name: str) -> None:
    text = (RUNBOOKS / f"{name}.md").read_text()
    assert text.startswith(f"# {name}\n")
    assert tuple(line for line in text.splitlines() if line.startswith("## ")) == SECTIONS


def test_a_runbook_has_an_alert() -> None:
    assert {file.stem for file in RUNBOOKS.glob("*.md")} == {*ALERTS, "README"}
    listed = re.findall(r"^\| \[(\w+)\]\(\1\.md\) \| (\w+) \|", (RUNBOOKS / "README.md").read_text(), re.MULTILINE)
    assert listed == [(name, alert["labels"]["severity"]) for name, alert in ALERTS.items()]


def test_series_are_written_as_promtool_reads_them() -> None:
    assert notation([1.0, 1.0, 2.0]) == "1.0x1 2.0x0"
    assert notation([None, 1.0, None, None, 3.0]) == "_x1 1.0x0 stale _x1 3.0x0"
