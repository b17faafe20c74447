"""The demo's output: scenes with their commands, a board of the running parts, the verdict.

In a terminal the board is drawn in place at the bottom; elsewhere it is one plain line every few seconds, so that a CI
log is readable. The screen only gets the processes' reports.
"""

import sys
import time
from dataclasses import dataclass
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headrace_spark.demo.check import Check
from headrace_spark.demo.reports import Alarm, FeedReport, LiveReport, NewestValue, SparkReport, StateReport

PLAIN_EVERY_S: Final = 5.0
WIDTH: Final = 100
BARS: Final = "▁▂▃▄▅▆▇█"
ORDER: Final = ("core", "machine", "memory", "disk", "net", "demo", "process", "space")
"""Kinds of devices, in the order in which the board shows them."""
MAX_CORES: Final = 4
BOARD_LINES: Final = 16
"""Lines that the board needs besides the rows of its table."""
SHOWN_ALARMS: Final = 3


@dataclass(frozen=True, slots=True)
class Board:
    """The newest reports, and what the story currently does."""

    act: str
    nodes: tuple[bool, ...]
    """For each node whether it is up."""
    feed: FeedReport | None = None
    live: LiveReport | None = None
    state: StateReport | None = None
    spark: SparkReport | None = None
    alarms: tuple[Alarm, ...] = ()


class Screen:
    """The terminal, or a log in its place. Use it as a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        if not self._console.is_terminal:
            self._console.width = 1_000  # without a terminal, lines are not wrapped
        self._began = time.monotonic()
        self._plain_at = 0.0
        self._act = ""
        self._live: Live | None = None

    def __enter__(self) -> "Screen":
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the story began."""
        return time.monotonic() - self._began

    def headline(self, text: str, more: str) -> None:
        """Print the story's name and its subject."""
        self._console.print(f"\n[bold]{escape(text)}[/]\n[dim]{escape(more)}[/]")

    def scene(self, number: int, text: str) -> None:
        """Print the heading of a scene."""
        self._console.print(f"\n[bold cyan]{number}[/] [bold]{escape(text)}[/]  [dim]{self.elapsed_s:.0f} s[/]")

    def command(self, text: str) -> None:
        """Print a command that is about to run, as a user would type it."""
        self._console.print(f"  [green]$[/] {escape(text)}")

    def note(self, text: str) -> None:
        """Print a sentence."""
        self._console.print(Padding(escape(text), (0, 0, 0, 2), expand=False))

    def alarm(self, alarm: Alarm, how: str) -> None:
        """Print a flagged window that the story waited for."""
        self._console.print(
            f"  [bold yellow]⚑ {escape(alarm.device)} {escape(alarm.sensor)} {number(alarm.mean)} "
            f"where {number(alarm.baseline)} is usual[/]: {escape(how)}"
        )

    def failure(self, text: str) -> None:
        """Print an error."""
        self.clear()
        self._console.print(f"  [bold red]✗ {escape(text)}[/]")

    def log_lines(self, lines: tuple[str, ...]) -> None:
        """Print the last lines of a process's log."""
        for line in lines:
            self._console.print(f"    [dim]{escape(line[:300])}[/]")

    def verdict(self, check: Check) -> None:
        """Print the result of a check."""
        mark = "[bold green]✓[/]" if check.ok else "[bold red]✗[/]"
        line = Table.grid(padding=(0, 1))
        line.add_column(width=2, justify="right")
        line.add_column(width=9)
        line.add_column(overflow="fold")
        line.add_row(mark, f"[bold]{check.what}[/]", escape(check.found))
        self._console.print(line)

    def place(self, path: str, what: str) -> None:
        """Print the path of a result."""
        line = Table.grid(padding=(0, 1))
        line.add_column(min_width=36, overflow="fold")
        line.add_column(overflow="fold")
        line.add_row(f"  [cyan]{escape(path)}[/]", escape(what))
        self._console.print(line)

    def show(self, board: Board) -> None:
        """Show the present state of the running parts."""
        if not self._console.is_terminal:
            self._show_plain(board)
            return
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        rows = max(min(self._console.height - BOARD_LINES, 18), 4)
        self._live.update(draw(board, rows=rows, now_ms=time.time_ns() // 1_000_000), refresh=True)

    def clear(self) -> None:
        """Remove the board."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _show_plain(self, board: Board) -> None:
        now = time.monotonic()
        if board.act == self._act and now - self._plain_at < PLAIN_EVERY_S:
            return
        self._act, self._plain_at = board.act, now
        self._console.print(f"  {self.elapsed_s:5.1f} s  {escape(plain(board))}")
        sys.stdout.flush()


def plain(board: Board) -> str:
    """Return the board in one line."""
    down = board.nodes.count(False)
    parts = [board.act, f"{len(board.nodes) - down} of {len(board.nodes)} nodes"] if down else [board.act]
    if (feed := board.feed) is not None:
        parts.append(f"feed {feed.per_second:,.0f}/s {feed.acknowledged:,} acknowledged {feed.waiting:,} waiting")
    if (live := board.live) is not None:
        parts.append(f"live p50 {live.p50_ms:.0f} ms p99 {live.p99_ms:.0f} ms")
    if (state := board.state) is not None:
        parts.append(f"SQLite {state.readings:,}")
    if (spark := board.spark) is not None:
        more = f" {spark.readings:,} read {spark.windows:,} windows {spark.flagged:,} flagged"
        parts.append(f"Spark {spark.phase if spark.phase != 'running' else 'batch ' + str(spark.batch)}{more}")
    return " | ".join(parts)


def draw(board: Board, *, rows: int, now_ms: int) -> RenderableType:
    """Return the board for a terminal."""
    parts: list[RenderableType] = [Text(""), _act(board), Text(""), _processes(board)]
    if board.live is not None and board.live.newest:
        parts += [Text(""), _newest(board.live, rows=rows, now_ms=now_ms)]
    if board.alarms:
        parts += [Text(""), _alarms(board)]
    return Group(*parts)


def _act(board: Board) -> Text:
    marks = [("●", "bold green") if up else ("○", "bold red") for up in board.nodes]
    return Text.assemble("  ", *marks, " ", (board.act, "bold"))


def _processes(board: Board) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", min_width=8)
    for _ in range(3):
        table.add_column(justify="right")
    feed, live, state, spark = board.feed, board.live, board.state, board.spark
    if feed is not None:
        waits = f", {feed.waiting:,} wait" if feed.waiting > feed.per_second / 2 else ""
        table.add_row(
            "  feed", f"[bold]{feed.per_second:,.0f}[/] readings/s", f"{feed.acknowledged:,} acknowledged",
            f"{feed.sensors} sensors, {feed.devices} topics{waits}",
        )  # fmt: skip
    if live is not None:
        table.add_row(
            "  live", f"p50 [bold]{live.p50_ms:.0f}[/] ms, p99 {live.p99_ms:.0f} ms", f"{live.readings:,} seen",
            "sensor to screen",
        )  # fmt: skip
    if state is not None:
        table.add_row("  SQLite", f"[bold]{state.sensors:,}[/] rows", f"{state.readings:,} taken in", "exactly once")
    if spark is not None and spark.phase != "running":
        table.add_row("  Spark", spark.phase, "", "")
    elif spark is not None:
        table.add_row(
            "  Spark", f"[bold]{spark.windows:,}[/] windows", f"{spark.readings:,} read",
            f"{spark.flagged:,} flagged, batch {spark.batch}",
        )  # fmt: skip
    return table


def _newest(live: LiveReport, *, rows: int, now_ms: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2))
    table.add_column("  device", max_width=34, no_wrap=True)
    table.add_column("sensor")
    table.add_column("newest", justify="right")
    table.add_column("last 12 s")
    table.add_column("age", justify="right")
    for one in pick(live.newest, rows=rows, now_ms=now_ms):
        age = max(now_ms - one.time, 0) / 1000
        style = "dim" if age > 2 else ""
        table.add_row(
            f"  {one.device}", one.sensor, f"[bold]{number(one.value)}[/]", f"[cyan]{sparkline(one.trend)}[/]",
            f"{age:.1f} s", style=style,
        )  # fmt: skip
    return table


def _alarms(board: Board) -> Text:
    text = Text()
    for alarm in board.alarms[-SHOWN_ALARMS:]:
        text.append("  ⚑ ", "bold yellow")
        text.append(f"{alarm.device} {alarm.sensor} ", "yellow")
        text.append(f"{number(alarm.mean)} where {number(alarm.baseline)} is usual\n")
    text.rstrip()
    return text


def pick(newest: tuple[NewestValue, ...], *, rows: int, now_ms: int) -> list[NewestValue]:
    """Return the devices to show: by kind, then by name; silent ones last."""

    def rank(one: NewestValue) -> tuple[bool, int, str]:
        kind = one.device.partition("-")[0]
        return (now_ms - one.time > 10_000, ORDER.index(kind) if kind in ORDER else len(ORDER), one.device)

    shown: list[NewestValue] = []
    cores = 0
    for one in sorted(newest, key=rank):
        cores += one.device.startswith("core-")
        if not one.device.startswith("core-") or cores <= MAX_CORES:
            shown.append(one)
    return shown[:rows]


def sparkline(values: tuple[float, ...]) -> str:
    """Return values as bars between the smallest and the largest of them."""
    if not values:
        return ""
    low, high = min(values), max(values)
    span = high - low
    if not span:
        return BARS[0] * len(values)
    return "".join(BARS[min(int((value - low) / span * len(BARS)), len(BARS) - 1)] for value in values)


def number(value: float) -> str:
    """Return a value in readable form."""
    return (
        f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.1f}" if abs(value) >= 1 or not value else f"{value:.3f}"
    )
