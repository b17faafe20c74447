"""Appending and reading, through all states of a chunk."""

from kit.written_log import Writing

FOREVER = 1 << 60


def test_what_is_appended_is_read_from_memory_at_once_and_from_disk_once_written(writing: Writing) -> None:
    batches = [writing.append(records=10) for _ in range(3)]
    log = writing.log
    assert log.read_tail(1, 15, limit=FOREVER, max_bytes=FOREVER) == batches[1:]
    assert log.read(1, 0, limit=FOREVER, max_bytes=FOREVER) == []
    assert log.end > log.synced
    writing.sync()
    assert log.read(1, 15, limit=FOREVER, max_bytes=FOREVER) == batches[1:]
    assert log.read(1, 15, limit=20, max_bytes=FOREVER) == batches[1:2]
    assert log.read(1, 15, limit=FOREVER, max_bytes=1) == batches[1:2]
    assert log.read(1, 30, limit=FOREVER, max_bytes=1) == []
    assert log.read(2, 0, limit=FOREVER, max_bytes=1) == []
    assert log.end == log.synced
    assert log.pending_bytes == 0


def test_all_survives_full_chunks_closing_and_reopening(writing: Writing) -> None:
    writing.fill_chunks(4)
    writing.check()
    writing.close_chunks()
    assert len(writing.log.closed_chunks()) == 4
    writing.check()
    for _ in range(2):
        end = writing.log.end
        writing.reopen()
        assert (writing.log.end, writing.log.synced, writing.log.start) == (end, end, 0)
        assert len(writing.log.closed_chunks()) == 4
        writing.append(3)
        writing.sync()
        writing.check()


def test_trim_drops_whole_closed_chunks_only(writing: Writing) -> None:
    writing.fill_chunks(3)
    writing.close_chunks()
    chunks = writing.log.chunks()
    writing.log.trim(chunks[2].start - 1)
    assert writing.log.start == chunks[1].start
    writing.log.trim(writing.log.end)
    assert writing.log.start == chunks[3].start
    assert sorted(path.suffix for path in writing.folder.iterdir()).count(".chunk") == 1
    writing.reopen()
    assert writing.log.start == chunks[3].start
