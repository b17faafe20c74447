"""CSV as it occurs in practice: separator, encoding, header, and a quote that is never closed."""

import csv
import os
import threading
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.readings import Asked, BadReadings, ReadingsFile
from kit.readings_files import columns_of, written

T0 = 1_441_115_100_000  # 2015-09-01T13:45:00Z


def test_a_row_of_another_width_is_named_or_skipped_as_asked(tmp_path: Path) -> None:
    path = written(tmp_path, "time,value\n2015-09-01 13:45:00,1\n2015-09-01 13:50:00\n2015-09-01,2,,\n2015-09-01,3,x\n")
    with pytest.raises(BadReadings, match="line 3"):
        list(ReadingsFile(path, Asked()))
    readings = ReadingsFile(path, Asked(skip_bad=True))
    assert [each.value for each in readings] == [1.0, 2.0]
    assert readings.skipped == 2


def test_a_quote_that_is_never_closed_is_named_or_skipped_and_swallows_no_row(tmp_path: Path) -> None:
    rows = "".join(f"2015-09-01 13:45:00,{number}\n" for number in range(3, 9))
    path = written(tmp_path, f'time,value\n2015-09-01 13:45:00,1\n2015-09-01 13:45:00,"2\n{rows}')
    with pytest.raises(BadReadings, match=r"press\.csv, line 3: a quote that begins there is never closed"):
        list(ReadingsFile(path, Asked()))
    readings = ReadingsFile(path, Asked(skip_bad=True))
    assert [each.value for each in readings] == [1.0, *map(float, range(3, 9))]
    assert readings.skipped == 1


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
