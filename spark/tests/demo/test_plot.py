from pathlib import Path

from headrace_spark.demo import plot
from headrace_spark.demo.check import PRESS, FlaggedWindow
from headrace_spark.demo.ledger import Aggregates, WindowKey

PNG = b"\x89PNG\r\n\x1a\n"


def run_of(device: str, sensor: str, *, flagged: frozenset[int] = frozenset()) -> dict[WindowKey, FlaggedWindow]:
    return {
        (device, sensor, start): FlaggedWindow(Aggregates(20, 20.0, 0.0, 2.0), 1.0, 0.5, start in flagged)
        for start in range(0, 60_000, 2_000)
    }


def test_a_run_is_drawn_as_png(tmp_path: Path) -> None:
    windows = run_of(*PRESS, flagged=frozenset({30_000, 32_000})) | run_of("core-0", "busy_percent")
    marks = plot.Marks((29_000, 35_000), (40_000, 43_000))
    plot.draw(tmp_path / "run.png", windows, marks=marks, window_ms=2_000, title="a run")
    assert (tmp_path / "run.png").read_bytes().startswith(PNG)


def test_a_run_without_any_flag_is_drawn_too(tmp_path: Path) -> None:
    windows = run_of("core-0", "busy_percent")
    plot.draw(tmp_path / "run.png", windows, marks=plot.Marks((0, 0), (0, 0)), window_ms=2_000, title="a run")
    assert (tmp_path / "run.png").read_bytes().startswith(PNG)
