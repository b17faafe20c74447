"""Turns samples into results: one JSON file per scenario, one table (README.md), one plot.

A results file is {"scenario", "machine", "sizes", "client_limit", "samples": [{"server", "run", "busy_percent",
"figures": {row: {...}} | "error": text}]}. Nothing is left out: a run that failed is in the file and in the table.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.cluster_scenarios import CLUSTER_SCENARIOS
from bench.figures import paired_ratio
from bench.link_scenarios import LINK_SCENARIOS
from bench.rights_scenarios import RIGHTS_SCENARIOS
from bench.scenarios import SCENARIOS, Row, Scenario
from bench.shard_scenarios import SHARD_SCENARIOS
from bench.tls_scenarios import TLS_SCENARIOS

SUITE = SCENARIOS + SHARD_SCENARIOS + CLUSTER_SCENARIOS + LINK_SCENARIOS + TLS_SCENARIOS + RIGHTS_SCENARIOS
KAFKA, HEADRACE = "kafka", "headrace"
LINKS = "A link between two clusters of three nodes, and MirrorMaker 2 between two brokers or, where a row says so, six"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table."""

    row: Row
    kafka: float | None
    headrace: float | None
    ratio: float | None
    """How many times better Headrace is: the median over the pairs of runs."""
    runs: int
    note: str

    @property
    def reached(self) -> bool | None:
        """Whether the goal was reached; None without a goal or without a measurement."""
        if self.row.below is not None:
            return None if self.headrace is None else self.headrace < self.row.below
        if self.row.above is not None:
            return None if self.headrace is None else self.headrace >= self.row.above
        if self.row.reach is None or self.ratio is None:
            return None
        return self.ratio >= self.row.reach


def figures_of(samples: Sequence[dict[str, Any]], *, server: str, row: Row) -> dict[int, float]:
    """Return a row's value by run, for the runs of one server that have one."""
    found = {}
    for sample in samples:
        value = sample.get("figures", {}).get(row.key, {}).get(row.figure) if sample["server"] == server else None
        if value is not None:
            found[int(sample["run"])] = float(value)
    return found


def line(result: dict[str, Any], row: Row) -> Line:
    """Return a row's medians, and the median ratio over the runs that both servers finished."""
    samples = result["samples"]
    kafka = figures_of(samples, server=KAFKA, row=row)
    headrace = figures_of(samples, server=HEADRACE, row=row)
    both = sorted(kafka.keys() & headrace.keys())
    ratio = paired_ratio(
        [headrace[run] for run in both], [kafka[run] for run in both], more_is_better=row.more_is_better
    )
    return Line(
        row=row,
        kafka=median(kafka.values()) if kafka else None,
        headrace=median(headrace.values()) if headrace else None,
        ratio=ratio,
        runs=len(both) or len(kafka) or len(headrace),
        note="; ".join(_notes(result, row)),
    )


def _notes(result: dict[str, Any], row: Row) -> list[str]:
    notes = []
    limit = result.get("client_limit")
    if limit and row.figure in limit and row.more_is_better:
        notes.append(f"the client alone: {limit[row.figure]:,.0f}")
    for server in (KAFKA, HEADRACE):
        mine = [sample for sample in result["samples"] if sample["server"] == server]
        failed = [sample["error"] for sample in mine if "error" in sample]
        if failed:
            notes.append(f"{server} failed in {len(failed)} of {len(mine)} runs: {_short(failed[-1])}")
        for sample in mine[-1:]:
            of_row = sample.get("figures", {}).get(row.key, {})
            if of_row.get("ended"):
                notes.append(f"{server}: {_short(of_row['ended'])}")
            filled = of_row.get("filled")
            if filled and (filled["topics"] < filled["topics_goal"] or filled["bytes"] < filled["bytes_goal"]):
                notes.append(f"{server} held {filled['topics']:,} topics, {filled['bytes'] / (1 << 30):.1f} GiB")
            elif filled and filled.get("fell_over"):
                first = filled["fell_over"][0]
                notes.append(
                    f"{server} was measured with {filled['topics']:,} topics: with {first['topics_goal']:,} it "
                    f"failed at {first['topics']:,} ({_short(first['ended'] or '')})"
                )
            if of_row.get("unacknowledged"):
                notes.append(f"{server} left {of_row['unacknowledged']:,} records unacknowledged at the time limit")
    return notes


def _short(text: str) -> str:
    last = [each.strip() for each in text.splitlines() if each.strip()][:1]
    return (last[0] if last else "")[:160].replace("|", "/")


def figure(value: float | None, unit: str) -> str:
    """Return a value as the table shows it."""
    if value is None:
        return "-"
    if unit == "s" or unit == "ms":
        return f"{value:.3g} {unit}" if value < 100 else f"{value:,.0f} {unit}"
    if unit in ("x", "%"):
        return f"{value:.2f} {unit}"
    return f"{value:,.0f} {unit}"


def table(lines: Sequence[Line], *, heading: str) -> str:
    """Return the table in Markdown."""
    out = [
        heading,
        "",
        "| | Kafka 4.3 | Headrace | times better | goal | reached | runs | notes |",
        "|---|---:|---:|---:|---:|---|---:|---|",
    ]
    for each in lines:
        row = each.row
        goal = f"< {row.below:g} {row.unit}" if row.below else (f"{row.reach:g} x" if row.reach else "")
        goal = f"{row.above:,.0f} {row.unit}" if row.above else goal
        reached = {True: "yes", False: "no", None: ""}[each.reached]
        ratio = "-" if each.ratio is None else f"{each.ratio:.2f} x"
        out.append(
            f"| {row.title} | {figure(each.kafka, row.unit)} | {figure(each.headrace, row.unit)} | {ratio} "
            f"| {goal} | {reached} | {each.runs} | {each.note} |"
        )
    return "\n".join(out) + "\n"


def plot(lines: Sequence[Line], path: Path) -> None:
    """Draw how many times better Headrace is, as a bar for each row with a ratio, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [each for each in lines if each.ratio][::-1]
    if not shown:
        return
    figure_, axes = pyplot.subplots(figsize=(11, 0.42 * len(shown) + 1.6), layout="constrained")
    ratios = [each.ratio or 0.0 for each in shown]
    colours = ["#1b7f5c" if ratio >= 1 else "#c2542d" for ratio in ratios]
    bars = axes.barh(range(len(shown)), [ratio - 1 for ratio in ratios], left=1, color=colours)
    axes.set_yticks(range(len(shown)), [each.row.title for each in shown])
    axes.set_xscale("log")
    axes.axvline(1.0, color="black", linewidth=0.8)
    for bar, each in zip(bars, shown, strict=True):
        ratio = each.ratio or 0.0
        axes.annotate(
            f"{ratio:.2f} x",
            (ratio, bar.get_y() + bar.get_height() / 2),
            xytext=(4 if ratio >= 1 else -4, 0),
            textcoords="offset points",
            va="center",
            ha="left" if ratio >= 1 else "right",
            fontsize=8,
        )
    for index, each in enumerate(shown):
        if each.row.reach:
            axes.plot([each.row.reach], [index], marker="d", color="black", markersize=4)
    axes.margins(x=0.15, y=0.01)
    axes.set_xlabel("times better than Apache Kafka 4.3 on the same machine (diamond: the goal)")
    axes.spines[["top", "right"]].set_visible(False)
    figure_.savefig(path, dpi=130)
    pyplot.close(figure_)


def read_results(folder: Path) -> list[tuple[Scenario, dict[str, Any]]]:
    """Return the results in a folder, in the order of the scenarios."""
    found = []
    for scenario in SUITE:
        path = folder / f"{scenario.name}.json"
        if path.exists():
            found.append((scenario, json.loads(path.read_text())))
    return found


def write(folder: Path) -> list[Line]:
    """Write README.md and plot.png from all results in a folder; return the table's lines."""
    results = read_results(folder)
    lines = [(scenario, line(result, row)) for scenario, result in results for row in scenario.rows]
    plain = [(scenario, each) for scenario, each in lines if not scenario.tls]
    one = [each for scenario, each in plain if scenario.nodes == 1 and scenario.shards is None]
    shards = [each for scenario, each in plain if scenario.shards is not None]
    three = [each for scenario, each in plain if scenario.nodes > 1 and not scenario.paired]
    tls = [each for scenario, each in lines if scenario.tls and not scenario.rights]
    rights = [each for scenario, each in lines if scenario.rights]
    links = [each for scenario, each in lines if scenario.paired]
    text = [
        "# Headrace compared with Apache Kafka",
        "",
        "Written by `bench/run.py`; docs/performance.md says how, and what limits each figure. Medians; `times better`",
        "is the median of the ratios of the alternating runs. Headrace syncs to disk before each acknowledgement,",
        "Kafka does not. p99 of producers that send without waiting is the time that a record spends in their queue.",
        "",
    ]
    machines = sorted({_machine(result) for _, result in results})
    text += [*(f"- {machine}" for machine in machines), ""]
    folder.mkdir(parents=True, exist_ok=True)
    tables = [
        table(lines, heading=f"## {heading}")
        for lines, heading in (
            (one, "One node and one broker"),
            (shards, "Shards of one pod, and one broker: many partitions, one replica"),
            (three, "Three nodes and three brokers"),
            (links, LINKS),
            (tls, "Over TLS: one node and three, as the row says"),
            (rights, "Over TLS with client certificates and 1,000 ACLs (Headrace: access expressions)"),
        )
        if lines
    ]
    (folder / "README.md").write_text("\n".join([*text, *tables, "![](plot.png)\n"]))
    plot(one + shards + three + links + tls + rights, folder / "plot.png")
    return one + shards + three + links + tls + rights


def _machine(result: dict[str, Any]) -> str:
    machine = result["machine"]
    quick = " **Quick run: shows that the harness works, says nothing about speed.**" if result.get("quick") else ""
    return (
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']} GiB, Linux {machine['kernel']}, "
        f"Python {machine['python']}, {machine['java']}; a process may open {machine['open_files']:,} files and hold "
        f"{machine['memory_maps']:,} memory maps.{quick}"
    )
