"""The table of a node's metrics in docs/observability.md: `python -m headrace.metrics.table` updates it."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headrace.metrics.declarations import SECTIONS
from headrace.metrics.metric import Metric

BEGIN: Final = "<!-- metrics of nodes: written by python -m headrace.metrics.table -->"
END: Final = "<!-- end of the metrics of nodes -->"


def table() -> str:
    """The Markdown tables of all metrics, by section."""
    return "\n".join(_lines())


def with_table(text: str) -> str:
    """A document with its table brought up to date. Raises ValueError if the document has no place for it."""
    return with_part(text, table(), begin=BEGIN, end=END)


def with_part(text: str, part: str, *, begin: str, end: str) -> str:
    """A document with `part` between its lines `begin` and `end`. Raises ValueError if it lacks these lines."""
    before, found_begin, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"the document has no place for the table: {begin} and {end}")
    return f"{before}{begin}\n\n{part}\n{end}{after}"


def main(path: Path) -> None:
    """[blocking] Updates the table of a document."""
    path.write_text(with_table(path.read_text()))


def _lines() -> Iterator[str]:
    for section, metrics in SECTIONS.items():
        yield from (f"### {section}", "", "| name | type | unit | labels | meaning |", "|---|---|---|---|---|")
        yield from map(_row, metrics)
        yield ""


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind.value} | {metric.unit} | {labels} | {metric.help} |"


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/observability.md"))
