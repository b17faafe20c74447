"""The table reports what was measured, what failed, and whether a goal was reached."""

import json
from pathlib import Path
from typing import Any

from bench import report
from bench.scenarios import SCENARIOS, Row

MACHINE = {
    "cores": 2,
    "memory_gib": 4.0,
    "cpu": "some",
    "kernel": "6",
    "python": "3.11",
    "java": "17",
    "open_files": 1000,
    "memory_maps": 1000,
}
RATE = Row("produce", "produce", "per_s", "records/s", reach=1.0)


def result(kafka: list[float | None], headrace: list[float | None], *, row: Row = RATE) -> dict[str, Any]:
    samples = []
    for server, figures in (("kafka", kafka), ("headrace", headrace)):
        for run, figure in enumerate(figures):
            taken: dict[str, Any] = {"server": server, "run": run}
            if figure is None:
                taken["error"] = f"{server} fell | over\nat length"
            else:
                taken["figures"] = {row.key: {row.figure: figure}}
            samples.append(taken)
    return {"machine": MACHINE, "samples": samples}


def test_medians_are_each_servers_and_the_ratio_is_of_pairs() -> None:
    line = report.line(result([10.0, 20.0, 40.0], [30.0, 10.0, 80.0]), RATE)
    assert (line.kafka, line.headrace, line.ratio, line.runs, line.reached) == (20.0, 30.0, 2.0, 3, True)


def test_less_may_be_better() -> None:
    row = Row("ready", "ready", "seconds", "s", more_is_better=False, reach=5.0)
    line = report.line(result([10.0], [2.5], row=row), row)
    assert (line.ratio, line.reached) == (4.0, False)


def test_an_absolute_goal_needs_no_kafka() -> None:
    row = Row("memory", "memory", "mib", "MiB", more_is_better=False, below=400.0)
    assert report.line(result([], [399.0], row=row), row).reached is True
    assert report.line(result([], [400.0], row=row), row).reached is False


def test_an_absolute_goal_may_be_a_minimum() -> None:
    row = Row("create", "create", "per_s", "topics/s", above=5_000.0)
    assert report.line(result([], [5_000.0], row=row), row).reached is True
    assert report.line(result([], [4_999.0], row=row), row).reached is False
    assert "| 5,000 topics/s | yes |" in report.table([report.line(result([], [5_000.0], row=row), row)], heading="")


def test_failed_runs_are_reported_and_not_paired() -> None:
    line = report.line(result([10.0, None, 10.0], [20.0, 500.0, 20.0]), RATE)
    assert (line.ratio, line.runs) == (2.0, 2)
    assert line.note == "kafka failed in 1 of 3 runs: kafka fell / over"


def test_a_server_that_took_less_than_asked_says_so() -> None:
    row = Row("clean", "ready", "seconds", "s", more_is_better=False)
    measured = result([3.0], [1.0], row=row)
    measured["samples"][0]["figures"]["clean"]["filled"] = {
        "topics": 20_000,
        "topics_goal": 100_000,
        "bytes": 0,
        "bytes_goal": 1 << 30,
        "ended": "OutOfTime",
    }
    assert report.line(measured, row).note == "kafka held 20,000 topics, 0.0 GiB"


def test_a_folder_of_results_becomes_a_table_and_a_plot(tmp_path: Path) -> None:
    scenario = SCENARIOS[0]
    measured = result([10.0], [20.0], row=scenario.rows[0])
    (tmp_path / f"{scenario.name}.json").write_text(json.dumps(measured))
    lines = report.write(tmp_path)
    assert [line.ratio for line in lines] == [2.0, None]
    text = (tmp_path / "README.md").read_text()
    assert "| 10 records/s | 20 records/s | 2.00 x | 1 x | yes | 1 |" in text
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_scenarios_and_their_rows_have_names_of_their_own() -> None:
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
    for scenario in SCENARIOS:
        assert len({row.key for row in scenario.rows}) == len(scenario.rows)


def test_shares_of_a_core_are_shown_to_a_hundredth_of_a_per_cent() -> None:
    assert report.figure(0.504, "%") == "0.50 %"


def test_links_have_a_table_of_their_own(tmp_path: Path) -> None:
    sample = {"server": "headrace", "run": 0, "busy_percent": 1.0, "figures": {"source": {"source_more_percent": 0.25}}}
    result = {"scenario": "link-idle-100000", "machine": MACHINE, "samples": [sample]}
    (tmp_path / "link-idle-100000.json").write_text(json.dumps(result))
    lines = report.write(tmp_path)
    assert [each.reached for each in lines] == [True, None]
    text = (tmp_path / "README.md").read_text()
    assert f"## {report.LINKS}" in text
    assert "Three nodes" not in text
