from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from headrace_spark.demo.outcome import read_windows
from headrace_spark.demo.pipeline import DETECTION, Judge, keep

START = datetime(2026, 1, 1, tzinfo=UTC)


def windows(*means: float, first: int, sensor: str = "cpu") -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "device": "press",
                "sensor": sensor,
                "start": START + timedelta(seconds=2 * (first + number)),
                "end": START + timedelta(seconds=2 * (first + number + 1)),
                "count": 20,
                "mean": mean,
                "min": mean,
                "max": mean,
                "stddev": 0.0,
            }
            for number, mean in enumerate(means)
        ]
    )


def flags(table: pa.Table) -> list[bool]:
    return list(table.column("anomaly").to_pylist())


def usual(count: int) -> list[float]:
    return [10.0 + number % 3 for number in range(count)]


def test_a_lasting_change_is_flagged_and_what_is_usual_is_not(tmp_path: Path) -> None:
    judge = Judge(tmp_path)
    quiet = usual(DETECTION.warm_up + 5)
    assert not any(flags(judge.flag(windows(*quiet, first=0), batch=0)))
    assert flags(judge.flag(windows(90.0, 95.0, 92.0, first=len(quiet)), batch=1)) == [False, True, True]


def test_windows_of_a_batch_are_judged_in_order_of_time(tmp_path: Path) -> None:
    means = [*usual(12), 90.0, 95.0]
    table = windows(*means, first=0)
    shuffled = table.take(pa.array([13, 2, *range(3, 13), 0, 1]))
    assert Judge(tmp_path).flag(shuffled, batch=0) == Judge(tmp_path).flag(table, batch=0)


@pytest.mark.parametrize("again", [False, True])
def test_a_new_process_remembers_what_the_batches_before_hold(tmp_path: Path, again: bool) -> None:
    first = Judge(tmp_path)
    keep(first.flag(windows(*usual(12), first=0), batch=3), tmp_path / "batch=3")
    keep(first.flag(windows(90.0, first=12), batch=10), tmp_path / "batch=10")
    due = first.flag(windows(95.0, first=13), batch=11)
    if again:  # the batch was written, but not committed before the process ended
        keep(due, tmp_path / "batch=11")
    assert flags(due) == [True]
    assert Judge(tmp_path).flag(windows(95.0, first=13), batch=11) == due


def test_a_batch_that_is_kept_again_takes_its_own_place(tmp_path: Path) -> None:
    judge = Judge(tmp_path)
    table = judge.flag(windows(1.0, 2.0, first=0), batch=0)
    keep(table, tmp_path / "batch=0")
    keep(judge.flag(windows(1.0, 2.0, first=0), batch=0), tmp_path / "batch=0")
    found = read_windows(tmp_path)
    assert len(found.by_key) == 2
    assert found.repeated == 0
    assert parquet.read_table(tmp_path / "batch=0" / "windows.parquet").num_rows == 2


def test_a_window_that_is_there_twice_is_noticed(tmp_path: Path) -> None:
    table = Judge(tmp_path).flag(windows(1.0, 2.0, first=0), batch=0)
    keep(table, tmp_path / "batch=0")
    keep(table, tmp_path / "batch=1")
    assert read_windows(tmp_path).repeated == 2
