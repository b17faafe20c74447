"""The mark of chunk garbage collection is read whole, or refused."""

from pathlib import Path

import pytest

from headrace.base.errors import CorruptLog
from headrace.storage.gc_mark import load, store


def test_what_was_stored_last_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "chunk-gc"
    assert load(path) is None
    for content in (b"first", b"", b"the second one"):
        store(path, content)
        assert load(path) == content


@pytest.mark.parametrize("at", [3, 64, 66, 70])
def test_a_damaged_one_is_refused(tmp_path: Path, at: int) -> None:
    path = tmp_path / "chunk-gc"
    store(path, b"something that counts")
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CorruptLog):
        load(path)
    path.write_bytes(raw[:30])
    with pytest.raises(CorruptLog):
        load(path)
