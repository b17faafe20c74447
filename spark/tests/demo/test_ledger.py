from pathlib import Path

from headrace_spark.demo.ledger import Entry, LedgerWriter, expect, read_ledger

ENTRIES = [
    Entry("core-0", 0, "busy", 1, 1_000, 1.5, 11),
    Entry("core-0", 1, "busy", 2, 1_999, 0.5, 12),
    Entry("core-1", 0, "busy", 1, 2_000, -3.25, 13),
    Entry("core-0", 2, "busy", 3, 4_000, 2.0, 14),
]


def test_entries_are_read_as_they_were_written(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path / "ledger.csv")
    for entry in ENTRIES:
        writer.add(entry)
    writer.close()
    assert list(read_ledger(tmp_path / "ledger.csv")) == ENTRIES


def test_readings_are_summed_up_by_sensor_and_by_window() -> None:
    expected = expect(ENTRIES, window_ms=2_000)
    assert (expected.readings, expected.checksum, expected.newest_ms) == (4, 50, 4_000)
    assert expected.offsets == {"core-0": [0, 1, 2], "core-1": [0]}
    history = expected.sensors["core-0", "busy"]
    assert history.last == ENTRIES[3]
    assert (history.aggregates.count, history.aggregates.total, history.aggregates.mean) == (3, 4.0, 4.0 / 3)
    assert set(expected.windows) == {("core-0", "busy", 0), ("core-1", "busy", 2_000), ("core-0", "busy", 4_000)}
    first = expected.windows["core-0", "busy", 0]
    assert (first.count, first.lowest, first.highest) == (2, 0.5, 1.5)


def test_a_window_is_closed_when_its_end_is_older_than_the_newest_reading_by_the_watermark() -> None:
    expected = expect(ENTRIES, window_ms=2_000)
    assert set(expected.closed_windows(window_ms=2_000, watermark_ms=2_000)) == {("core-0", "busy", 0)}
    assert not expected.closed_windows(window_ms=2_000, watermark_ms=2_001)


def test_the_newest_reading_is_the_one_with_the_highest_sequence_however_acknowledgements_come() -> None:
    expected = expect([ENTRIES[3], ENTRIES[0], ENTRIES[1]], window_ms=2_000)
    assert expected.sensors["core-0", "busy"].last == ENTRIES[3]
