"""Draws a Grafana dashboard in Grafana's layout: rows, numbers and graphs with their units, legends, thresholds."""

import io
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

PAGE_PX: Final = 1440
"""Width of Grafana's 24 columns, in pixels."""
UNIT_PX: Final = 32
"""Height of one row of Grafana's grid, in pixels."""
GAP_PX: Final = 6
DPI: Final = 100
SHOWN: Final = 6
"""The maximum number of series in a legend."""
COLOURS: Final = 128
"""Colours in the PNG's palette."""

PAGE, PANEL, EDGE, TEXT, MUTED, LINES = "#111217", "#181b1f", "#25282d", "#ccccdc", "#8e8e9a", "#2c3036"
NAMED: Final = {"green": "#73bf69", "orange": "#ff9830", "red": "#f2495c"}
PALETTE: Final = (
    *("#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#705da0", "#37872d"),
    *("#fade2a", "#447ebc", "#c15c17", "#890f02", "#0a437c", "#6d1f62", "#584477"),
)


@dataclass(frozen=True, slots=True)
class Series:
    """One line: its name in the legend, and values by time in seconds since 1970."""

    name: str
    times: Sequence[float]
    values: Sequence[float]


def formatted(value: float, unit: str) -> str:
    """Return a value with its unit, as Grafana writes it."""
    if math.isnan(value):
        return "NaN"
    match unit:
        case "percentunit":
            return f"{value * 100:.3g} %"
        case "s":
            return _seconds(value)
        case "bytes":
            return _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))
        case "Bps":
            return _scaled(value, 1000, ("B/s", "kB/s", "MB/s", "GB/s"))
        case "reqps" | "ops" | "cps":
            return _scaled(value, 1000, tuple(f"{each} {_RATES[unit]}" for each in ("", "K", "Mil"))).replace("  ", " ")
    return _scaled(value, 1000, ("", "K", "Mil", "Bil")).strip()


_RATES: Final = {"reqps": "req/s", "ops": "ops/s", "cps": "c/s"}
_TIMES: Final = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def _seconds(value: float) -> str:
    for size, name in _TIMES:
        if abs(value) >= size:
            return f"{value / size:.3g} {name}"
    return "0 s" if not value else f"{value * 1e9:.3g} ns"


def _scaled(value: float, base: int, names: Sequence[str]) -> str:
    for name in names[:-1]:
        if abs(value) < base:
            return f"{value:.3g} {name}"
        value /= base
    return f"{value:.3g} {names[-1]}"


def draw(
    path: Path,
    board: Mapping[str, Any],
    *,
    series: Callable[[Mapping[str, Any]], Sequence[Series]],
    begin_s: float,
    end_s: float,
) -> None:
    """Write a dashboard as PNG; `series` returns the series of a panel, which is given as JSON."""
    import matplotlib as mpl
    from PIL import Image

    mpl.use("Agg")
    from matplotlib import pyplot

    height = max(each["gridPos"]["y"] + each["gridPos"]["h"] for each in board["panels"])
    page = (PAGE_PX, (height + 2) * UNIT_PX)
    with pyplot.rc_context({"font.size": 8, "font.family": "DejaVu Sans", "text.color": TEXT}):
        figure = pyplot.figure(figsize=(page[0] / DPI, page[1] / DPI), dpi=DPI, facecolor=PAGE)
        canvas = _Canvas(figure, page)
        canvas.text(12, UNIT_PX, board["title"], size=13, weight="bold")
        when = time.strftime("%H:%M:%S", time.gmtime(begin_s)), time.strftime("%H:%M:%S UTC", time.gmtime(end_s))
        canvas.text(PAGE_PX - 12, UNIT_PX, " to ".join(when), colour=MUTED, side="right")
        for panel in board["panels"]:
            at = panel["gridPos"]
            left, width = at["x"] * PAGE_PX / 24, at["w"] * PAGE_PX / 24
            top = (at["y"] + 2) * UNIT_PX
            if panel["type"] == "row":
                canvas.text(12, top + UNIT_PX * 0.55, f"⌄  {panel['title']}", size=10, weight="bold")
                continue
            box = (left + GAP_PX / 2, top, width - GAP_PX, at["h"] * UNIT_PX - GAP_PX)
            found = series(panel)
            if panel["type"] == "stat":
                _stat(canvas, box, panel, found)
            else:
                _graph(canvas, box, panel, found, begin_s, end_s)
        content = io.BytesIO()
        figure.savefig(content, dpi=DPI, facecolor=PAGE)
        pyplot.close(figure)
    path.parent.mkdir(exist_ok=True)
    Image.open(content).convert("RGB").quantize(COLOURS).save(path, optimize=True)


Box = tuple[float, float, float, float]
"""Left, top, width and height in pixels, from the page's upper left corner."""


class _Canvas:
    """A figure, in pixels from its upper left corner."""

    def __init__(self, figure: Any, page: tuple[int, int]) -> None:
        self._figure, self._page = figure, page

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 8,
        colour: str = TEXT,
        side: str = "left",
        weight: str = "",
    ) -> None:
        width, height = self._page
        self._figure.text(
            x / width,
            1 - y / height,
            text,
            fontsize=size,
            color=colour,
            ha=side,
            va="center",
            weight=weight or "normal",
        )

    def box(self, box: Box, colour: str) -> None:
        from matplotlib.patches import Rectangle

        left, top, wide, high = box
        width, height = self._page
        at = (left / width, 1 - (top + high) / height)
        self._figure.add_artist(
            Rectangle(at, wide / width, high / height, facecolor=colour, edgecolor=EDGE, linewidth=0.8, zorder=-1)
        )

    def axes(self, box: Box) -> Any:
        left, top, wide, high = box
        width, height = self._page
        return self._figure.add_axes(
            (left / width, 1 - (top + high) / height, wide / width, high / height), facecolor="none"
        )


def _colour_of(value: float, steps: Sequence[Mapping[str, Any]]) -> str:
    reached = [each["color"] for each in steps if each["value"] is None or value >= each["value"]]
    return NAMED[reached[-1]]


def _stat(canvas: _Canvas, box: Box, panel: Mapping[str, Any], found: Sequence[Series]) -> None:
    left, top, width, height = box
    defaults = panel["fieldConfig"]["defaults"]
    value = found[0].values[-1] if found else None
    colour = PANEL if value is None else _colour_of(value, defaults["thresholds"]["steps"])
    canvas.box(box, colour)
    ink = TEXT if value is None else PAGE
    canvas.text(left + 8, top + 14, panel["title"], colour=ink, weight="bold")
    canvas.text(
        left + width / 2, top + height * 0.6, "No data" if value is None else formatted(value, defaults["unit"]),
        size=19 if value is not None else 12, colour=ink, side="center",
    )  # fmt: skip


def _graph(
    canvas: _Canvas, box: Box, panel: Mapping[str, Any], found: Sequence[Series], begin_s: float, end_s: float
) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    left, top, width, height = box
    defaults = panel["fieldConfig"]["defaults"]
    unit = defaults["unit"]
    canvas.box(box, PANEL)
    canvas.text(left + 8, top + 14, panel["title"], weight="bold")
    if not found:
        canvas.text(left + width / 2, top + height / 2, "No data", size=11, colour=MUTED, side="center")
        return
    rows = min(len(found), SHOWN) + 1 + (len(found) > SHOWN)
    legend = rows * 14 + 6
    axes = canvas.axes((left + 62, top + 30, width - 76, height - 30 - legend - 22))
    is_stacked = defaults["custom"]["stacking"]["mode"] == "normal"
    times = sorted({at for each in found for at in each.times})
    floor = [0.0] * len(times)
    for number, each in enumerate(found):
        colour = PALETTE[number % len(PALETTE)]
        if is_stacked:
            own = dict(zip(each.times, each.values, strict=True))
            ceiling = [below + own.get(at, 0.0) for at, below in zip(times, floor, strict=True)]
            axes.fill_between(times, floor, ceiling, color=colour, alpha=0.2, lw=0)
            axes.plot(times, ceiling, color=colour, lw=1)
            floor = ceiling
        else:
            axes.plot(*_with_gaps(each), color=colour, lw=1)
    low, high = axes.get_ylim()
    low, high = min(defaults.get("min", low), low), defaults.get("max", max(high, 1e-9))
    steps = [each for each in defaults["thresholds"]["steps"] if each["value"] is not None]
    if defaults["custom"]["thresholdsStyle"]["mode"] != "off":
        for each in steps:
            if each["value"] <= high * 1.5:
                high = max(high, each["value"] * 1.1)
                axes.axhline(each["value"], color=NAMED[each["color"]], lw=0.9, ls="--")
    axes.set_ylim(max(low, defaults.get("min", low)), high)
    axes.set_xlim(begin_s, end_s)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: formatted(value, unit)))
    axes.xaxis.set_major_locator(MaxNLocator(max(int(width / 110), 2)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: time.strftime("%H:%M:%S", time.gmtime(value))))
    axes.tick_params(colors=MUTED, labelsize=7, length=0)
    axes.grid(color=LINES, lw=0.6)
    for each in axes.spines.values():
        each.set_visible(False)
    line = top + height - legend + 6
    canvas.text(left + width - 70, line, "last", size=7, colour=MUTED, side="right")
    canvas.text(left + width - 8, line, "max", size=7, colour=MUTED, side="right")
    for number, each in enumerate(found[:SHOWN]):
        line += 14
        canvas.text(left + 10, line, "━", colour=PALETTE[number % len(PALETTE)])
        canvas.text(left + 28, line, _cut(each.name, int((width - 190) / 6)), size=7.5)
        canvas.text(left + width - 70, line, formatted(each.values[-1], unit), size=7.5, side="right")
        canvas.text(left + width - 8, line, formatted(max(each.values), unit), size=7.5, side="right")
    if len(found) > SHOWN:
        canvas.text(left + 28, line + 14, f"and {len(found) - SHOWN} more", size=7.5, colour=MUTED)


def _with_gaps(series: Series) -> tuple[list[float], list[float]]:
    """Return the series' points, with a break where a sample is missing."""
    if len(series.times) < 2:
        return list(series.times), list(series.values)
    step = min(after - before for before, after in zip(series.times, series.times[1:], strict=False))
    times, values = [series.times[0]], [series.values[0]]
    for before, now, value in zip(series.times, series.times[1:], series.values[1:], strict=False):
        if now - before > 1.5 * step:
            times.append(before + step)
            values.append(math.nan)
        times.append(now)
        values.append(value)
    return times, values


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
