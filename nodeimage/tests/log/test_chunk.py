"""Closed chunks: trailer, footer, and the consequences of damage to them."""

import pytest

from headrace.base.errors import CorruptLog
from headrace.log.chunk import read_trailer
from headrace.log.container_log import ContainerLog
from headrace.log.segment import SEGMENT_HEAD_BYTES
from kit.damaged_files import bad_sector, flip
from kit.written_log import Writing


def test_a_closed_chunk_with_a_damaged_end_is_read_whole_and_closed_again(writing: Writing) -> None:
    writing.fill_chunks(2)
    writing.close_chunks()
    path = writing.log.closed_chunks()[0].path
    size = path.stat().st_size
    for back in (64, 60, 1):
        flip(path, size - back)
        writing.reopen(cleanly=False)
        (chunk,) = writing.log.chunks_to_close()
        assert chunk.path == path
        writing.check()
        writing.close_chunks()
        writing.check()
        assert not writing.log.chunks_to_close()
        size = path.stat().st_size


def test_a_damaged_footer_is_corruption_when_it_is_used(writing: Writing) -> None:
    writing.fill_chunks(2)
    writing.close_chunks()
    path = writing.log.closed_chunks()[0].path
    footer = int.from_bytes(path.read_bytes()[-24:-16], "little")
    flip(path, footer + 200)
    writing.reopen(cleanly=False)
    with pytest.raises(CorruptLog, match="index segment is damaged"):
        writing.read_all(1)
    flip(path, footer + 200)
    flip(path, footer + 20)
    with pytest.raises(CorruptLog, match="head of an index segment is damaged"):
        writing.reopen(cleanly=False)


@pytest.mark.parametrize("into", [0, SEGMENT_HEAD_BYTES + 8], ids=["head", "body"])
def test_a_footer_that_the_disk_cannot_read_is_damage(
    writing: Writing, monkeypatch: pytest.MonkeyPatch, into: int
) -> None:
    """Otherwise the access to the mapped footer would kill the process, at every start."""
    writing.fill_chunks(2)
    writing.close_chunks()
    chunk = writing.log.closed_chunks()[0]
    trailer = read_trailer(chunk.body.opened().fd)
    assert trailer is not None
    writing.log.close()
    bad_sector(monkeypatch, chunk.path, trailer.footer_at + into)

    def use() -> None:
        log = ContainerLog.open(writing.folder, writing.options)
        log.summaries(log.closed_chunks()[0])

    with pytest.raises(CorruptLog, match=f"byte {trailer.footer_at + into // 128 * 128}: the disk cannot read it"):
        use()
