import io

from rich.console import Console

from headrace_spark.demo.check import Check
from headrace_spark.demo.reports import Alarm, FeedReport, LiveReport, NewestValue, SparkReport, StateReport
from headrace_spark.demo.screen import Board, Screen, draw, pick, plain, sparkline

NEWEST = tuple(
    NewestValue(device, "cpu_percent", 12.5, 1_000_000, 10, (1.0, 2.0, 3.0))
    for device in ("process-java-1", "demo-press", "core-1", "core-0", "memory")
)
BOARD = Board(
    act="all parts run",
    nodes=(True, False, True),
    feed=FeedReport(1_000, 990, 0, 5, 50, 2_512.0, 10, 0),
    live=LiveReport(990, 0, 0, 4.0, 21.0, 0.3, 1, NEWEST, (), 5.0, 30.0),
    state=StateReport(980, 50, 0, 0),
    spark=SparkReport("running", batch=3, readings=900, windows=120, flagged=2),
    alarms=(Alarm("demo-press", "cpu_percent", "2026-01-01T00:00:00Z", 97.0, 0.2, 99.0),),
)


def rendered(width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, height=50)
    console.print(draw(BOARD, rows=10, now_ms=1_000_500))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_board_shows_rate_latency_state_spark_values_and_alarms() -> None:
    shown = rendered()
    for part in (
        "2,512 readings/s",
        "p50 4 ms, p99 21 ms",
        "980 taken in",
        "120 windows",
        "core-0",
        "97.0 where 0.2",
        "●○● all parts run",
    ):
        assert part in shown


def test_the_board_fits_a_terminal_of_eighty_columns() -> None:
    assert max(map(len, rendered(80).splitlines())) <= 80


def test_a_log_gets_the_board_in_one_line() -> None:
    assert plain(BOARD) == (
        "all parts run | 2 of 3 nodes | feed 2,512/s 990 acknowledged 10 waiting | live p50 4 ms p99 21 ms | "
        "SQLite 980 | Spark batch 3 900 read 120 windows 2 flagged"
    )


def test_where_there_is_no_terminal_the_board_is_printed_at_each_new_act_only_so_often() -> None:
    console = Console(file=io.StringIO())
    with Screen(console) as screen:
        for _ in range(50):
            screen.show(BOARD)
        screen.verdict(Check(True, "Topics", "all [there]"))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 2
    assert "✓" in lines[1]
    assert "all [there]" in lines[1]


def test_a_sentence_that_does_not_fit_goes_on_below_its_beginning() -> None:
    console = Console(file=io.StringIO(), width=40, force_terminal=True, color_system=None)
    with Screen(console) as screen:
        screen.note("ten readings were lost, and none of them was doubled")
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert all(line.startswith("  ") and len(line.rstrip()) <= 40 for line in lines[:2])
    assert " ".join(line.strip() for line in lines[:2]) == "ten readings were lost, and none of them was doubled"


def test_cores_come_first_and_silent_devices_last() -> None:
    silent = NewestValue("core-2", "busy_percent", 1.0, 0, 1, ())
    shown = pick((*NEWEST, silent), rows=9, now_ms=1_000_500)
    assert [one.device for one in shown] == ["core-0", "core-1", "memory", "demo-press", "process-java-1", "core-2"]
    assert len(pick(NEWEST, rows=2, now_ms=1_000_500)) == 2


def test_a_trend_spans_its_smallest_to_its_largest_value() -> None:
    assert sparkline((0.0, 7.0, 3.5)) == "▁█▅"
    assert sparkline((5.0, 5.0)) == "▁▁"
    assert sparkline(()) == ""
