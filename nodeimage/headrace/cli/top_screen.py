"""The screen of `headrace top`: panels one below the other, as large as the terminal has room for. Pure.

Keeps which panel has the focus and how each is sorted, and what keys change about that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich.cells import cell_len, set_cell_size

from headrace.cli.formatting import label, show_value
from headrace.cli.text import printable
from headrace.cli.top_rates import Shown, ordered

PANELS: Final[Mapping[str, tuple[str, ...]]] = {
    "nodes": (
        *("node", "state", "roles", "cpu_percent", "resident_bytes", "requests_per_second", "in_per_second_bytes"),
        *("out_per_second_bytes", "connections", "loop_lag_p99_ms", "leads", "in_sync", "replicas", "disk_used_bytes"),
    ),
    "containers": (
        *("container", "kind", "state", "primary", "in_sync", "wanted", "behind_bytes", "on_disk_bytes", "reason"),
    ),
    "streams": (
        *("stream", "in_per_second_bytes", "out_per_second_bytes", "in_per_second_records", "out_per_second_records"),
        *("records", "bytes"),
    ),
    "groups": ("group", "state", "partitions", "lag", "lag_per_second"),
    "events": ("at_ms", "kind", "container", "reason"),
}
"""The columns of each panel."""
FIRST_SORT: Final = {"streams": "in_per_second_bytes", "groups": "lag"}
"""Initial sort column by panel; other panels keep the order of their data."""
LABELS: Final = {
    "cpu_percent": "cpu %",
    "requests_per_second": "req/s",
    "in_per_second_bytes": "in/s",
    "out_per_second_bytes": "out/s",
    "in_per_second_records": "records in/s",
    "out_per_second_records": "records out/s",
    "lag_per_second": "lag/s",
    "resident_bytes": "memory",
    "loop_lag_p99_ms": "lag ms",
    "at_ms": "at",
}
MIN_LINES: Final = 3
"""Least lines of a panel with content, if there is room: its head and two rows."""
HELP: Final = "q quit   Tab next panel   s sort by the next column   r reverse the order"
BOLD, REVERSE, DIM, PLAIN = "\x1b[1m", "\x1b[7m", "\x1b[2m", "\x1b[0m"


@dataclass(slots=True)
class Looks:
    """The view that the user has chosen by keys."""

    focus: str = "nodes"
    sort: dict[str, str | None] = field(default_factory=lambda: {name: FIRST_SORT.get(name) for name in PANELS})
    """Sort column by panel; None: the order of the data."""
    reverse: set[str] = field(default_factory=set)
    is_over: bool = False

    def press(self, key: str) -> None:
        """Handle a key; unknown keys are ignored."""
        panels = list(PANELS)
        match key:
            case "q" | "Q" | "\x03":
                self.is_over = True
            case "\t":
                self.focus = panels[(panels.index(self.focus) + 1) % len(panels)]
            case "s":
                columns = (None, *PANELS[self.focus])
                self.sort[self.focus] = columns[(columns.index(self.sort[self.focus]) + 1) % len(columns)]
            case "r":
                self.reverse ^= {self.focus}

    def rows(self, panel: str, shown: Shown) -> list[dict[str, Any]]:
        """The rows of a panel in the chosen order."""
        rows: list[dict[str, Any]] = getattr(shown, panel)
        column, reverse = self.sort[panel], panel in self.reverse
        if column is None:
            return rows[::-1] if reverse else rows
        return ordered(rows, column, reverse=reverse)


def screen(shown: Shown, looks: Looks, *, width: int, height: int, note: str = "") -> str:
    """The whole screen as lines with styles, none wider than `width`, and at most `height` lines."""
    totals = {LABELS.get(name, label(name)): show_value(name, value) for name, value in shown.totals.items()}
    lines = [
        _cut(f"{BOLD}cluster {shown.cluster}{PLAIN}   controller {shown.controller}", width),
        _cut(note or f"redundancy {shown.redundancy}", width),
        _cut("all nodes: " + ", ".join(f"{name} {value}" for name, value in totals.items()), width),
    ]
    panels = {name: looks.rows(name, shown) for name in PANELS}
    room = shares({name: len(rows) + 2 for name, rows in panels.items() if rows}, height - len(lines) - 1)
    for name, size in room.items():
        if size >= 2:
            lines += ["", *panel_lines(name, panels[name], looks, width=width, height=size - 1)]
    lines = lines[: height - 1]
    lines += [""] * (height - 1 - len(lines))
    return "\n".join([*lines, DIM + _cut(HELP, width) + PLAIN])


def shares(wanted: Mapping[str, int], height: int) -> dict[str, int]:
    """Lines for each panel: as many as it wants if there is room for all, otherwise a fair share, but never more than
    it wants.

    If there is not even room for MIN_LINES lines each, the first panels are served first.
    """
    given = dict.fromkeys(wanted, 0)
    left = height
    for name, size in wanted.items():
        given[name] = min(size, MIN_LINES + 1, max(left, 0))
        left -= given[name]
    while left > 0 and (short := [name for name, size in wanted.items() if given[name] < size]):
        for name in short[:left]:
            given[name] += 1
            left -= 1
    return given


def panel_lines(name: str, rows: Sequence[Mapping[str, Any]], looks: Looks, *, width: int, height: int) -> list[str]:
    """A panel's head and as many rows as `height` has room for."""
    shown = rows[: max(0, height - 1)]
    columns = [each for each in PANELS[name] if any(row.get(each) not in (None, "") for row in rows) or not rows]
    heads = [_head(each, looks.sort[name], name in looks.reverse) for each in columns]
    cells = [[printable(str(show_value(each, row.get(each)))) for each in columns] for row in shown]
    right = [any(isinstance(row.get(each), (int, float)) for row in rows) and each != "at_ms" for each in columns]
    widths = [max(cell_len(text) for text in column) for column in zip(heads, *cells, strict=True)]
    title = f"{name} ({len(rows)})" if len(rows) > len(shown) else name
    lines = [_line(heads, widths, right), *(_line(row, widths, right) for row in cells)]
    mark = REVERSE if name == looks.focus else BOLD
    head = set_cell_size(f"{title:<12} {lines[0]}", width)
    return [f"{mark}{head}{PLAIN}", *(_cut(f"{'':<12} {line}", width) for line in lines[1:])]


def _head(column: str, sorted_by: str | None, reverse: bool) -> str:
    mark = "" if column != sorted_by else "^" if reverse else "v"
    return LABELS.get(column, label(column)) + mark


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = [
        (" " * (size - cell_len(text)) + text if is_right else text + " " * (size - cell_len(text)))
        for text, size, is_right in zip(cells, widths, right, strict=True)
    ]
    return "  ".join(padded).rstrip()


def _cut(line: str, width: int) -> str:
    """The line cut to `width`; styles do not count."""
    bare = line.replace(BOLD, "").replace(PLAIN, "")
    return line if cell_len(bare) <= width else set_cell_size(bare, width).rstrip()
