import json
from decimal import Decimal
from pathlib import Path

import pytest

from headrace.cli.readings import Asked, BadReadings, Columns, Reading, ReadingsFile
from kit.readings_files import columns_of, written

NAB = Path(__file__).parents[4] / "shared" / "data" / "nab" / "data"
T0 = 1_441_115_100_000  # 2015-09-01T13:45:00Z


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


# --- CSV as it occurs in practice


# --- numbers and times of any size


def test_decimal_numbers_are_numbers_in_json() -> None:
    from headrace.cli.replay import _values

    for number in (Decimal("0.1234567890123456789"), Decimal(2**70), Decimal("1E+400"), Decimal("-1e-7")):
        text = _values.encode({"value": number}).decode()
        assert json.loads(text, parse_float=Decimal, parse_int=Decimal) == {"value": number}
