"""Rows of Parquet files of any types."""

import csv
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.cells import parse_value
from headrace.cli.readings import Asked, BadReadings, Reading, ReadingsFile

T0 = 1_441_115_100_000  # 2015-09-01T13:45:00Z


def test_parquet_and_csv_of_the_same_readings_are_the_same(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    moments = [datetime(2015, 9, 1, 13, 45, second, tzinfo=UTC) for second in range(60)]
    rows = {"time": moments, "device": ["a", "b"] * 30, "value": [float(number) for number in range(60)]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "same.parquet")
    with (tmp_path / "same.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(rows)
        writer.writerows(zip(*rows.values(), strict=True))
    from_parquet = list(ReadingsFile(tmp_path / "same.parquet", Asked()))
    assert from_parquet == list(ReadingsFile(tmp_path / "same.csv", Asked()))
    assert from_parquet[1] == Reading(T0 + 1_000, "b", "b", 1.0)


@pytest.mark.parametrize("cell", ["true", "True", "TRUE", True])
def test_true_is_1_in_csv_and_parquet_alike(cell: object) -> None:
    assert parse_value(cell) == 1.0


def parquet_of(folder: Path, columns: dict[str, Any]) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.Table.from_arrays(list(columns.values()), names=[name.rstrip("+") for name in columns])
    parquet.write_table(table, folder / "any.parquet")
    return folder / "any.parquet"


def test_parquet_of_any_type_is_read_or_told_with_its_row(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    times = pa.array([T0, T0 + 1], pa.timestamp("ms"))
    bad_text = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0\3\0\0\0"), pa.py_buffer(b"\xff\xfea")]
    )
    far = pa.array([2**60, 1], pa.timestamp("ms"))
    cases: list[tuple[Any, list[Any]]] = [
        (pa.array([2**63 - 1, None]), [Decimal(2**63 - 1)]),
        (pa.array([2**64 - 1, 1], pa.uint64()), [Decimal(2**64 - 1), 1.0]),
        (
            pa.array([Decimal("123456789012345678.123"), None], pa.decimal128(38, 3)),
            [Decimal("123456789012345678.123")],
        ),
        (pa.array([True, False]), [1.0, 0.0]),
        (pa.array([b"a\xff", b"1.5"]), ["a\\xff", 1.5]),
        (bad_text, ["\\xff\\xfe", "a"]),
        (pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
        (far, ["1152921504606846976 ms", "1970-01-01T00:00:00.001000+00:00"]),
        (pa.array([2**30, 0], pa.date32()), ["92771293593600 s", "1970-01-01T00:00:00+00:00"]),
        (
            pa.array([2**62 + 1, 1], pa.timestamp("ns")),
            ["2116-02-20T23:53:38.427000+00:00", "1970-01-01T00:00:00+00:00"],
        ),
        (pa.array([[1], [2, 3]]), ["[1]", "[2, 3]"]),
        (pa.nulls(2), []),
    ]
    for column, values in cases:
        path = parquet_of(tmp_path, {"time": times, "value": column})
        assert [each.value for each in ReadingsFile(path, Asked())] == values, column.type
    for column in (pa.array([2**60, 1], pa.duration("ms")), pa.array([[2**60], [1]], pa.list_(pa.timestamp("ms")))):
        path = parquet_of(tmp_path, {"time": times, "value": column})
        with pytest.raises(BadReadings, match="row 1"):
            list(ReadingsFile(path, Asked()))
        unused = {"time": times, "value": times, "x": column, "y": times}
        assert len(list(ReadingsFile(parquet_of(tmp_path, unused), Asked()))) == 2


def test_a_far_time_in_parquet_is_told_with_its_row_or_skipped(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    path = parquet_of(tmp_path, {"time": pa.array([T0, 2**55], pa.timestamp("ms")), "value": pa.array([1.0, 2.0])})
    with pytest.raises(BadReadings, match="row 2: the time 36028797018963968 ms"):
        list(ReadingsFile(path, Asked()))
    assert len(list(ReadingsFile(path, Asked(skip_bad=True)))) == 1


def test_a_parquet_column_named_twice_is_refused_where_it_counts(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    times, one, two = pa.array([T0], pa.timestamp("ms")), pa.array([1.0]), pa.array([2.0])
    with pytest.raises(BadReadings, match="twice: value"):
        ReadingsFile(parquet_of(tmp_path, {"time": times, "value": one, "value+": two}), Asked())
    path = parquet_of(tmp_path, {"time": times, "value": one, "x": one, "x+": two})
    assert [each.value for each in ReadingsFile(path, Asked())] == [1.0]
