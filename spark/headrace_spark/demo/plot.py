"""The picture of a run: the press's load spike with Spark's flags, the cores, the throughput, all flags.

Draws the windows that check.py has verified.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace_spark.demo.check import PRESS, FlaggedWindow
from headrace_spark.demo.ledger import WindowKey

INK, MUTED, BLUE, ORANGE, RED, GREY = "#1b2733", "#6b7885", "#2a78b5", "#d9822b", "#c8322b", "#dfe4e8"
MAX_DEVICES: Final = 14


@dataclass(frozen=True, slots=True)
class Marks:
    """When events of the run happened, in milliseconds since 1970."""

    spike: tuple[int, int]
    down: tuple[int, int]


def draw(path: Path, windows: Mapping[WindowKey, FlaggedWindow], *, marks: Marks, window_ms: int, title: str) -> None:
    """Write the picture as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    origin = min(start for *_, start in windows)

    def seconds(ms: int) -> float:
        return (ms - origin) / 1000

    with pyplot.rc_context(_STYLE):
        figure, axes = pyplot.subplots(
            4, 1, figsize=(11, 10.5), sharex=True, height_ratios=(3, 3, 2, 3.6), constrained_layout=True
        )
        figure.suptitle(title, x=0.012, ha="left", fontsize=14, fontweight="bold", color=INK)
        _press(axes[0], windows, seconds, window_ms)
        _cores(axes[1], windows, seconds, window_ms)
        _readings(axes[2], windows, seconds, window_ms)
        _flags(axes[3], windows, seconds, window_ms)
        for number, axis in enumerate(axes):
            axis.axvspan(*map(seconds, marks.spike), color=ORANGE, alpha=0.13, lw=0)
            axis.axvspan(*map(seconds, marks.down), color=MUTED, alpha=0.28, lw=0)
            if number == 0:
                _label(axis, seconds(marks.spike[0]), "real load spike", ORANGE, side="right")
                _label(axis, seconds(marks.down[0]), "a node is dead", MUTED, side="left")
        axes[-1].set_xlabel("seconds since the first reading")
        figure.savefig(path, dpi=130)
        pyplot.close(figure)


_STYLE: Final[Any] = {
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GREY,
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "figure.facecolor": "white",
    "legend.frameon": False,
}


def _series(windows: Mapping[WindowKey, FlaggedWindow], device: str, sensor: str) -> list[tuple[int, FlaggedWindow]]:
    return sorted(
        ((start, window) for (one, other, start), window in windows.items() if (one, other) == (device, sensor)),
        key=lambda pair: pair[0],
    )


def _press(axis: Any, windows: Mapping[WindowKey, FlaggedWindow], seconds: Any, window_ms: int) -> None:
    series = _series(windows, *PRESS)
    middle = [seconds(start + window_ms // 2) for start, _ in series]
    axis.fill_between(
        middle, [w.aggregates.lowest for _, w in series], [w.aggregates.highest for _, w in series], color=BLUE,
        alpha=0.18, lw=0, label="lowest to highest",
    )  # fmt: skip
    axis.plot(middle, [w.mean for _, w in series], color=BLUE, lw=1.8, label="mean of the window")
    flagged = [(seconds(start + window_ms // 2), w.mean) for start, w in series if w.anomaly]
    axis.scatter(*zip(*flagged, strict=True) if flagged else ([], []), color=RED, s=42, zorder=3, label="flagged")
    axis.set_title("the press: CPU % of its process, as Spark saw it")
    axis.set_ylim(bottom=0)
    axis.margins(y=0.18)
    axis.legend(loc="lower right", bbox_to_anchor=(1.0, 0.99), ncols=3, fontsize=9, borderaxespad=0.2)


def _cores(axis: Any, windows: Mapping[WindowKey, FlaggedWindow], seconds: Any, window_ms: int) -> None:
    cores = sorted({device for device, _, _ in windows if device.startswith("core-")}, key=lambda d: int(d[5:]))
    sums: dict[int, list[float]] = defaultdict(list)
    for core in cores:
        series = _series(windows, core, "busy_percent")
        axis.plot(
            [seconds(start + window_ms // 2) for start, _ in series], [w.mean for _, w in series], color=BLUE, lw=0.9,
            alpha=0.45,
        )  # fmt: skip
        for start, window in series:
            sums[start].append(window.mean)
    starts = sorted(sums)
    axis.plot(
        [seconds(start + window_ms // 2) for start in starts],
        [sum(sums[start]) / len(sums[start]) for start in starts], color=INK, lw=1.6,
    )  # fmt: skip
    axis.set_title(f"the machine: busy % of its {len(cores)} cores (bold: their mean)")
    axis.set_ylim(0, 104)


def _readings(axis: Any, windows: Mapping[WindowKey, FlaggedWindow], seconds: Any, window_ms: int) -> None:
    counts: Counter[int] = Counter()
    for (_, _, start), window in windows.items():
        counts[start] += window.aggregates.count
    starts = sorted(counts)
    axis.bar(
        [seconds(start) for start in starts], [counts[start] * 1000 / window_ms for start in starts],
        width=window_ms / 1000 * 0.86, align="edge", color=BLUE, alpha=0.75,
    )  # fmt: skip
    axis.set_title("readings per second in Spark's windows: the dead node leaves no hole")


def _flags(axis: Any, windows: Mapping[WindowKey, FlaggedWindow], seconds: Any, window_ms: int) -> None:
    cells: Counter[tuple[str, int]] = Counter()
    totals: Counter[str] = Counter()
    for (device, _, start), window in windows.items():
        if window.anomaly:
            cells[device, start] += 1
            totals[device] += 1
    shown = [device for device, _ in totals.most_common(MAX_DEVICES)]
    if PRESS[0] in totals and PRESS[0] not in shown:
        shown[-1] = PRESS[0]
    shown.sort(key=lambda device: (device != PRESS[0], -totals[device]))
    rows = {device: number for number, device in enumerate(reversed(shown))}
    points = [
        (seconds(start + window_ms // 2), rows[device], count)
        for (device, start), count in cells.items()
        if device in rows
    ]
    if points:
        x, y, size = zip(*points, strict=True)
        colours = [RED if row == rows.get(PRESS[0]) else ORANGE for row in y]
        axis.scatter(x, y, s=[14 + 12 * count for count in size], c=colours, alpha=0.75, lw=0)
    axis.set_yticks(list(rows.values()), [_short(device) for device in rows])
    axis.set_ylim(-0.7, max(len(rows) - 0.3, 0.7))
    axis.set_title("flagged windows by device (larger: more of its sensors)")


def _short(device: str) -> str:
    return device if len(device) <= 26 else f"{device[:12]}…{device[-13:]}"


def _label(axis: Any, x: float, text: str, colour: str, *, side: str) -> None:
    """Draw a word at the top of an axis, beside the band that it names; `side` is the end of the word at the band."""
    axis.annotate(
        text,
        (x, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(-5 if side == "right" else 5, -4),
        textcoords="offset points",
        va="top",
        ha=side,
        color=colour,
        fontsize=9,
        fontweight="bold",
    )
