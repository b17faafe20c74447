from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.local.tail import LogTail, last_lines


def test_only_whole_lines_are_read_and_each_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = LogTail(path)
    assert tail.read() == []
    with path.open("a") as log:
        for written, expected in [("one\ntw", ["one"]), ("o\n", ["two"]), ("", []), ("\n3\n", ["", "3"])]:
            log.write(written)
            log.flush()
            assert tail.read() == expected


def test_reading_starts_at_the_offset_and_again_at_0_after_the_file_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old\nnew\n")
    tail = LogTail(path, offset=4)
    assert tail.read() == ["new"]
    path.write_text("cut\n")
    assert tail.read() == ["cut"]


def test_the_last_lines_leave_out_empty_ones_and_what_was_before(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("before\n" + "".join(f"{number}\n\n" for number in range(30)))
    assert last_lines(path, count=2) == ["28", "29"]
    assert last_lines(path, count=99, offset=7)[0] == "0"
    assert last_lines(tmp_path / "missing", count=2) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.lists(st.binary(max_size=40), max_size=20))
def test_however_it_is_written_the_same_lines_are_read(tmp_path: Path, pieces: list[bytes]) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"")
    tail = LogTail(path)
    read: list[str] = []
    with path.open("ab") as log:
        for piece in pieces:
            log.write(piece)
            log.flush()
            read += tail.read()
    whole = b"".join(pieces).split(b"\n")[:-1]
    assert read == [line.decode("utf-8", "replace") for line in whole]
