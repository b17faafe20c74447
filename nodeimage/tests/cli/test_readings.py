import csv
import json
import os
import threading
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.cells import LAST_MS, Instant, number_of, parse_value
from headrace.cli.readings import Asked, BadReadings, Columns, Reading, ReadingsFile, parse_time

NAB = Path(__file__).parents[4] / "shared" / "data" / "nab" / "data"
T0 = 1_441_115_100_000  # 2015-09-01T13:45:00Z


def written(folder: Path, text: str | bytes, name: str = "press.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def columns_of(path: Path, asked: Asked | None = None) -> Columns:
    return ReadingsFile(path, asked or Asked()).columns


def test_two_columns_are_time_and_value_and_the_file_is_the_device(tmp_path: Path) -> None:
    path = written(tmp_path, "timestamp,value\n2015-09-01 13:45:00,3.06\n2015-09-01 13:50:00,6.44\n")
    assert list(ReadingsFile(path, Asked())) == [
        Reading(T0, "press", "press", 3.06),
        Reading(T0 + 300_000, "press", "press", 6.44),
    ]


def test_columns_are_known_by_name_in_any_order_and_case(tmp_path: Path) -> None:
    path = written(tmp_path, "Device,Reading,Event_Time,Metric\n7,3.5,2015-09-01T13:45:00Z,oil\n")
    assert columns_of(path) == Columns(time="Event_Time", device="Device", sensor="Metric", values=("Reading",))
    assert list(ReadingsFile(path, Asked())) == [Reading(T0, "7", "oil", 3.5)]


def test_columns_without_telling_names_are_known_by_what_they_hold(tmp_path: Path) -> None:
    path = written(tmp_path, "a;b;c\npump-1;2015-09-01 13:45:00;3.5\npump-2;2015-09-01 13:46:00;4\n")
    assert columns_of(path) == Columns(time="b", device="a", sensor=None, values=("c",))


def test_every_number_column_of_a_wide_file_is_a_sensor(tmp_path: Path) -> None:
    path = written(tmp_path, "time,machine,oil,water\n2015-09-01 13:45:00,m1,1,2\n2015-09-01 13:50:00,m1,,4\n")
    readings = ReadingsFile(path, Asked())
    assert [(each.sensor, each.value) for each in readings] == [("oil", 1.0), ("water", 2.0), ("water", 4.0)]
    assert readings.skipped == 1


def test_what_is_said_of_columns_goes_over_what_is_guessed(tmp_path: Path) -> None:
    path = written(tmp_path, "time,value,other\n2015-09-01 13:45:00,1,2\n")
    assert columns_of(path, Asked(values=("other",), device="value")) == Columns(
        time="time", device="value", sensor=None, values=("other",)
    )


@pytest.mark.parametrize(
    ("text", "asked", "says"),
    [
        ("", Asked(), "no rows"),
        ("time,value\n", Asked(), "no rows"),
        ("a,b\nx,y\n", Asked(), "--time-column"),
        ("time,device\n2015-09-01,x\n", Asked(), "--value-column"),
        ("time,value\n2015-09-01,1\n", Asked(time="when"), "no column 'when'; it has time, value"),
        ("time,value,value\n2015-09-01,1,2\n", Asked(), "twice"),
        ("time,value\n31/12/2015 10:00,1\n", Asked(), "--time-format"),
    ],
)
def test_a_file_that_cannot_be_read_says_what_to_do(tmp_path: Path, text: str, asked: Asked, says: str) -> None:
    with pytest.raises(BadReadings, match=says):
        list(ReadingsFile(written(tmp_path, text), asked))


def test_a_bad_row_is_named_or_skipped_as_asked(tmp_path: Path) -> None:
    path = written(tmp_path, "time,value\n2015-09-01 13:45:00,1\nyesterday,2\n2015-09-01 13:50:00,3\n")
    with pytest.raises(BadReadings, match="row 2"):
        list(ReadingsFile(path, Asked()))
    readings = ReadingsFile(path, Asked(skip_bad=True))
    assert [each.value for each in readings] == [1.0, 3.0]
    assert readings.skipped == 1


def test_a_row_of_another_width_is_named_or_skipped_as_asked(tmp_path: Path) -> None:
    path = written(tmp_path, "time,value\n2015-09-01 13:45:00,1\n2015-09-01 13:50:00\n2015-09-01,2,,\n2015-09-01,3,x\n")
    with pytest.raises(BadReadings, match="line 3"):
        list(ReadingsFile(path, Asked()))
    readings = ReadingsFile(path, Asked(skip_bad=True))
    assert [each.value for each in readings] == [1.0, 2.0]
    assert readings.skipped == 2


def test_cells_that_are_no_number_for_json_are_left_out_and_words_are_kept(tmp_path: Path) -> None:
    path = written(tmp_path, "time,value\n1441115100,nan\n1441115101,inf\n1441115102,open\n1441115103,\n")
    readings = ReadingsFile(path, Asked())
    assert list(readings) == [Reading(T0 + 2_000, "press", "press", "open")]
    assert readings.skipped == 3


def test_binary_noise_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "noise.csv"
    path.write_bytes(bytes(range(128, 256)) * 100)
    with pytest.raises(BadReadings, match="not CSV"):
        ReadingsFile(path, Asked())
    path = tmp_path / "noise.parquet"
    path.write_bytes(b"PAR1 but not really")
    with pytest.raises(BadReadings, match="not Parquet"):
        ReadingsFile(path, Asked())
    with pytest.raises(BadReadings, match="No such file"):
        ReadingsFile(tmp_path / "missing.csv", Asked())


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


@given(st.datetimes(min_value=datetime(1973, 4, 1), max_value=datetime(2200, 1, 1)))
def test_a_moment_is_the_same_in_every_way_of_writing_it(moment: datetime) -> None:
    moment = moment.replace(microsecond=moment.microsecond // 1000 * 1000, tzinfo=UTC)
    ms = round(moment.timestamp() * 1000)
    texts = [
        moment.isoformat(),
        moment.isoformat(" "),
        moment.replace(tzinfo=None).isoformat(),
        str(ms),
        str(ms / 1000),
    ]
    assert {parse_time(text) for text in texts} == {ms}
    assert {parse_time(number) for number in (ms, ms * 1_000, ms * 1_000_000, moment)} == {ms}


@pytest.mark.parametrize("cell", ["", "noon", None, True, float("nan"), float("inf"), 10**30, [], "nan"])
def test_what_is_no_time_is_refused(cell: object) -> None:
    with pytest.raises(BadReadings):
        parse_time(cell)


@pytest.mark.parametrize(
    ("file", "count", "first", "last"),
    [
        ("realKnownCause/machine_temperature_system_failure.csv", 22_695, 73.96732207, 96.90386085),
        ("realKnownCause/nyc_taxi.csv", 10_320, 10_844.0, 26_288.0),
        ("realTraffic/occupancy_6005.csv", 2_380, 3.06, 5.56),
    ],
)
def test_real_readings_are_read_whole(file: str, count: int, first: float, last: float) -> None:
    path = NAB / file
    if not path.exists():
        pytest.skip(f"{path} is not there")
    readings = list(ReadingsFile(path, Asked()))
    assert len(readings) == count
    assert (readings[0].value, readings[-1].value) == (first, last)
    assert {each.device for each in readings} == {path.stem}


# --- CSV as people have it


AT = "2015-09-01 13:45:00"


@pytest.mark.parametrize(
    ("text", "device", "value"),
    [
        (f"\ufefftime,device,value\r\n{AT},pump,1.5\r\n\r\n", "pump", 1.5),
        (f"time\tdevice\tvalue\n{AT}\tpump\t1.5\n".encode("utf-16"), "pump", 1.5),
        (f"time;device;value\n{AT};pump;1,5\n", "pump", 1.5),
        (f"time;device;value\n{AT};pump;1.234,5\n", "pump", 1234.5),
        (f"time;device;value\n{AT};pump;1,234\n", "pump", "1,234"),
        ("Zeit;Gerät;value\n01.09.2015 13:45;pump, rechts;2\n", "pump, rechts", 2.0),
        (f"sep=;\ntime;device;value\n{AT};pump;1.5\n", "pump", 1.5),
        (f"time|device|value\n{AT}|pump|1.5\n", "pump", 1.5),
        (f'time, device, value\n{AT}, "a, b", 1.5\n', "a, b", 1.5),
        (f"'time','device','value'\n'{AT}','a,b','1.5'\n", "a,b", 1.5),
        (f'time,device,value\n{AT},"two\nlines",1.5\n', "two\nlines", 1.5),
        (f"time,device,value\r{AT},pump,1.5\r", "pump", 1.5),
        (f",,\n\ntime,device,value,\n  \n{AT},pump,1.5,\n,,,\n", "pump", 1.5),
        (f"time,device,value\n{AT},,1.5\n", "press", 1.5),
        (f"{AT},pump,1.5\n2015-09-01 13:46:00,pump,2\n", "pump", 1.5),
        (f",value\n{AT},1.5\n", "press", 1.5),
        (f"time,a,a,value\n{AT},x,y,1.5\n", "press", 1.5),
    ],
)
def test_csv_is_read_as_people_have_it(tmp_path: Path, text: str | bytes, device: str, value: float | str) -> None:
    first = next(iter(ReadingsFile(written(tmp_path, text), Asked())))
    assert (first.time, first.device, first.value) == (T0, device, value)


def test_a_file_without_a_header_loses_no_row_and_has_its_columns_by_number(tmp_path: Path) -> None:
    readings = ReadingsFile(written(tmp_path, "0,1\n1,2\n2,3\n"), Asked(time="1"))
    assert not readings.has_header
    assert [(each.time, each.sensor, each.value) for each in readings] == [
        (0, "2", 1.0),
        (1_000, "2", 2.0),
        (2_000, "2", 3.0),
    ]


def test_the_index_of_a_data_frame_is_no_sensor(tmp_path: Path) -> None:
    path = written(tmp_path, f",time,oil,water\n0,{AT},1,2\n1,{AT},3,4\n")
    assert columns_of(path).values == ("oil", "water")


def test_another_encoding_is_told_and_can_be_said(tmp_path: Path) -> None:
    path = written(tmp_path, f"time;device;value\n{AT};Öl;1\n".encode("cp1252"))
    with pytest.raises(BadReadings, match="--encoding"):
        ReadingsFile(path, Asked())
    assert next(iter(ReadingsFile(path, Asked(encoding="cp1252")))).device == "Öl"
    for unknown in ("nonsense", "rot13", "base64"):
        with pytest.raises(BadReadings, match="no encoding"):
            ReadingsFile(path, Asked(encoding=unknown))
    late = written(tmp_path, b"time,value\n" + b"2015-09-01,1\n" * 10_000 + b"2015-09-01,\xff\n")
    with pytest.raises(BadReadings, match=r"after line .*--encoding"):
        list(ReadingsFile(late, Asked()))


@given(
    cells=st.lists(st.lists(st.text(min_size=1), min_size=2, max_size=2), min_size=1, max_size=5),
    separator=st.sampled_from(",;\t|"),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_what_csv_writers_write_comes_back(
    tmp_path_factory: pytest.TempPathFactory, cells: list[list[str]], separator: str, end: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=separator, lineterminator=end, quoting=csv.QUOTE_ALL)
        writer.writerow(("time", "device", "note", "value"))
        writer.writerows((AT, device, note, 1) for device, note in cells)
    assert [each.device for each in ReadingsFile(path, Asked(device="device"))] == [device for device, _ in cells]


def test_a_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(
        pyarrow.table({"time": [datetime(2015, 9, 1, 13, 45)] * 3, "value": [1.0, 2.0, 3.0]}), tmp_path / "a.parquet"
    )
    csv_text = "time,value\n" + f"{AT},1\n{AT},2\n{AT},3\n"
    for content in (csv_text.encode(), (tmp_path / "a.parquet").read_bytes()):
        path = tmp_path / "pipe"
        os.mkfifo(path)
        writer = threading.Thread(target=path.write_bytes, args=(content,))
        writer.start()
        assert [(each.time, each.value) for each in ReadingsFile(path, Asked())] == [(T0, 1.0), (T0, 2.0), (T0, 3.0)]
        writer.join()
        path.unlink()


# --- numbers and times of any size


@given(st.decimals(allow_nan=False, allow_infinity=False) | st.integers())
def test_a_value_keeps_every_digit(number: Decimal | int) -> None:
    for cell in (str(number), number):
        value = parse_value(cell)
        assert not isinstance(value, str)
        assert value is not None
        assert Decimal(repr(value) if isinstance(value, float) else value) == number


@pytest.mark.parametrize("text", ["1_000", "\u0661\u0662", "0x10", "1,5", "1e", "--1", "1e99999999999999999999"])
def test_what_python_alone_takes_for_a_number_is_text(text: str) -> None:
    assert number_of(text) is None
    assert parse_value(text) == text


@pytest.mark.parametrize("cell", ["true", "True", "TRUE", True])
def test_true_is_1_in_csv_and_parquet_alike(cell: object) -> None:
    assert parse_value(cell) == 1.0


@given(st.integers(-(2**63), 2**63 - 1), st.sampled_from([0, 3, 6, 9]))
def test_an_instant_is_its_own_time_or_is_refused(ticks: int, digits: int) -> None:
    exact = Decimal(ticks) / 10**digits * 1000
    try:
        found = Instant(ticks, digits).millis()
    except BadReadings:
        assert not -62_135_596_800_000 <= exact <= LAST_MS
    else:
        assert abs(found - exact) <= Decimal("0.5")


@given(st.datetimes())
def test_every_moment_of_the_calendar_is_exact(moment: datetime) -> None:
    exact = (moment - datetime(1970, 1, 1)) / timedelta(milliseconds=1)
    try:
        assert abs(parse_time(moment.isoformat()) - exact) <= 0.51
    except BadReadings:
        assert moment.year == 9999


@pytest.mark.parametrize(
    "cell",
    [
        "3.9e20",
        "-99999999999",
        "1e400",
        "9" * 5_000,
        "0001-01-01T00:00:00+14:00",
        "\u00b2",
        2**200,
        Decimal("1e500"),
        1e308,
    ],
)
def test_a_time_that_no_calendar_has_is_refused(cell: Any) -> None:
    with pytest.raises(BadReadings):
        parse_time(cell)


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


def test_decimal_numbers_are_numbers_in_json() -> None:
    from headrace.cli.replay import _values

    for number in (Decimal("0.1234567890123456789"), Decimal(2**70), Decimal("1E+400"), Decimal("-1e-7")):
        text = _values.encode({"value": number}).decode()
        assert json.loads(text, parse_float=Decimal, parse_int=Decimal) == {"value": number}
