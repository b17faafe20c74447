"""Files of secrets: complete or unchanged, and for their owner only."""

import os
import stat
from pathlib import Path

import pytest

from headrace.base.errors import KafkaError
from headrace.security import secret_files


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_its_owners_alone_whatever_was_there_before(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("former")
    path.chmod(0o644)
    (tmp_path / "secret.new").write_text("left by a crash")
    (tmp_path / "secret.new").chmod(0o666)
    secret_files.write(path, "new")
    assert (path.read_text(), mode_of(path)) == ("new", 0o600)
    assert [each.name for each in tmp_path.iterdir()] == ["secret"]


def test_a_umask_takes_nothing_away(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        secret_files.write(tmp_path / "public", "x", mode=0o644)
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "public") == 0o644


def test_who_else_may_read_a_file_is_known(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    secret_files.write(path, "x")
    assert not secret_files.may_be_read_by_others(path)
    path.chmod(0o640)
    assert secret_files.may_be_read_by_others(path)
    assert not secret_files.may_be_read_by_others(tmp_path / "nothing")


def test_a_password_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "password"
    for text in ("pa55 word", "pa55 word\n", "pa55 word\r\n"):
        path.write_text(text)
        assert secret_files.read_password(path) == "pa55 word"
    for text in ("", "\n", "two\nlines\n"):
        path.write_text(text)
        with pytest.raises(KafkaError, match="holds no password: it is one line") as refused:
            secret_files.read_password(path)
        assert "lines\n" not in str(refused.value)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(KafkaError, match="nothing cannot be read: No such file"):
        secret_files.read_text(tmp_path / "nothing")
    (tmp_path / "latin").write_bytes(b"\xff")
    with pytest.raises(KafkaError, match="latin is not UTF-8"):
        secret_files.read_text(tmp_path / "latin")
    (tmp_path / "long").write_bytes(bytes(secret_files.MAX_BYTES + 1))
    with pytest.raises(KafkaError, match="more than 1048576 bytes"):
        secret_files.read_text(tmp_path / "long")
