"""What commands print: results on stdout as a table or as JSON, everything else on stderr.

stdout carries nothing but the result, so that it can be piped; rich is imported only where a table is drawn.
"""

import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

import msgspec


class OutputFormat(StrEnum):
    """How a result is printed."""

    TABLE = "table"
    JSON = "json"


def note(message: str) -> None:
    """One line for the reader, on stderr."""
    print(message, file=sys.stderr, flush=True)


def print_json(result: Any) -> None:
    """One JSON document, one line."""
    sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    sys.stdout.flush()


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None, right: Iterable[str] = ()
) -> None:
    """A table; columns named in `right` are aligned to the right. None is shown as `-`."""
    from rich.console import Console
    from rich.table import Table

    aligned = set(right)
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in aligned else "left", overflow="fold")
    for row in rows:
        table.add_row(*("-" if cell is None else str(cell) for cell in row))
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:  # whole lines for grep, whatever the width of a terminal that is not there
        console = Console(markup=False, highlight=False, width=1_000)
    console.print(table)


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """One thing, a line for each of its properties."""
    rows = [(name, str(value)) for name, value in fields]
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
