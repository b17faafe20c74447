import sqlite3
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_spark.demo.outcome import read_state
from headrace_spark.demo.readings import Reading, encode, topic_of
from headrace_spark.demo.state import StateDatabase


@dataclass
class Record:
    """A record as a consumer returns it."""

    device: str
    at: int
    reading: Reading

    def topic(self) -> str:
        return topic_of(self.device)

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self.at

    def value(self) -> bytes:
        return encode(self.reading)


def record(offset: int, value: float = 1.0, *, device: str = "core-0", sensor: str = "busy") -> Record:
    return Record(device, offset, Reading(1_000 + offset, sensor, value, offset + 1))


def test_the_state_holds_count_sum_extremes_and_the_newest_value(tmp_path: Path) -> None:
    database = StateDatabase(tmp_path / "state.sqlite")
    database.take_in([record(0, 2.5), record(1, -1.0), record(2, 0.5)])
    database.close()
    row = read_state(tmp_path / "state.sqlite")["core-0", "busy"]
    assert row == (3, 3, 1_002, 0.5, -1.0, 2.5, 2.0)


def test_records_that_come_again_change_nothing(tmp_path: Path) -> None:
    database = StateDatabase(tmp_path / "state.sqlite")
    database.take_in([record(0), record(1)])
    database.take_in([record(0), record(1), record(2)])
    database.take_in([record(2), record(2)])
    assert database.totals() == (3, 1)
    assert database.skipped == 4


def test_a_new_process_goes_on_at_the_cursor(tmp_path: Path) -> None:
    StateDatabase(tmp_path / "state.sqlite").take_in([record(0), record(1), record(0, device="core-1")])
    database = StateDatabase(tmp_path / "state.sqlite")
    assert database.next_offset(topic_of("core-0"), 0) == 2
    assert database.next_offset(topic_of("core-1"), 0) == 1
    assert database.next_offset(topic_of("core-2"), 0) is None
    assert [(one.topic, one.offset) for one in database.cursors()] == [(topic_of("core-0"), 2), (topic_of("core-1"), 1)]


def test_state_and_cursor_move_together_or_not_at_all(tmp_path: Path) -> None:
    database = StateDatabase(tmp_path / "state.sqlite")
    database.take_in([record(0)])
    other = sqlite3.connect(tmp_path / "state.sqlite", isolation_level=None)
    other.execute("CREATE TRIGGER refuse BEFORE UPDATE ON cursors BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(sqlite3.Error):
        database.take_in([record(1)])
    other.execute("DROP TRIGGER refuse")
    assert database.totals() == (1, 1)
    assert database.next_offset(topic_of("core-0"), 0) == 1
    database.take_in([record(1)])
    assert database.totals() == (2, 1)


@given(st.lists(st.lists(st.integers(0, 30), max_size=12), max_size=8))
def test_whatever_is_delivered_again_each_offset_counts_once(deliveries: list[list[int]]) -> None:
    """Deliveries resume from any earlier offset and are then in order, like a consumer's."""
    database = StateDatabase(Path(":memory:"))
    reached = 0
    for starts in deliveries:
        for start in starts:
            first = min(start, reached)
            database.take_in([record(offset) for offset in range(first, first + 3)])
            reached = max(reached, first + 3)
    assert database.totals()[0] == reached
