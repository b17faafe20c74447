"""Rule tests for `promtool test rules`, and their results.

Samples are 15 s apart, a usual interval, and rules are evaluated as often; cases that take hours use a longer interval.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[3]
RULES: Final = [ROOT / "charts" / "headrace" / "rules" / f"{name}.yaml" for name in ("nodes", "kubernetes")]
STEP_S: Final = 15
PER_MINUTE: Final = 60 // STEP_S

Values = Sequence[float | None]
"""A sample for each step; None: the target did not answer."""


def promtool() -> str | None:
    """Return HEADRACE_PROMTOOL, the one beside this Python, or the one on the path."""
    beside = Path(sys.executable).parent / "promtool"
    return os.environ.get("HEADRACE_PROMTOOL") or (str(beside) if beside.exists() else shutil.which("promtool"))


def declared() -> dict[str, dict[str, Any]]:
    """Return the alerts of all rule files, by name."""
    groups = [group for file in RULES for group in yaml.safe_load(file.read_text())["groups"]]
    rules = [rule for group in groups for rule in group["rules"]]
    found = {str(rule["alert"]): rule for rule in rules}
    assert len(found) == len(rules), "two alerts have one name"
    return found


@dataclass(frozen=True, slots=True)
class Scenario:
    """What Prometheus scrapes, and which alerts fire when."""

    name: str
    series: Mapping[str, Values]
    firing: Mapping[int, Sequence[str]]
    """By minute: exactly the alerts that fire then."""
    interval_s: int = STEP_S


def run(scenarios: Sequence[Scenario], folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run promtool on the scenarios, and return its result."""
    files = []
    for interval_s in sorted({each.interval_s for each in scenarios}):
        files.append(folder / f"every-{interval_s}-s.yaml")
        tests = {
            "rule_files": [str(each) for each in RULES],
            "evaluation_interval": f"{interval_s}s",
            "tests": [_test(each) for each in scenarios if each.interval_s == interval_s],
        }
        files[-1].write_text(yaml.safe_dump(tests, sort_keys=False, width=10_000))
    command = [str(promtool()), "test", "rules", *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def notation(values: Values) -> str:
    """Return a series in promtool's notation: runs of one value are `VxN`; the first missing sample ends the series."""
    written: list[str] = []
    before: float | None = None
    at = 0
    while at < len(values):
        value = values[at]
        end = at
        while end < len(values) and values[end] == value:
            end += 1
        count = end - at
        if value is not None:
            written.append(f"{value}x{count - 1}")
        elif before is None:
            written.append(f"_x{count}")
        else:
            written += ["stale", *([f"_x{count - 1}"] if count > 1 else [])]
        before, at = value, end
    return " ".join(written)


def _test(scenario: Scenario) -> dict[str, Any]:
    return {
        "name": scenario.name,
        "interval": f"{scenario.interval_s}s",
        "input_series": [{"series": name, "values": notation(values)} for name, values in scenario.series.items()],
        "promql_expr_test": [
            {
                "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in sorted(alerts)],
            }
            for minute, alerts in scenario.firing.items()
        ],
    }
