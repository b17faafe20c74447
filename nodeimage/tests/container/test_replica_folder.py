"""The state file in a replica's folder, also across crashes."""

import errno
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from headrace.base.errors import CorruptLog, StorageFull
from headrace.base.ids import Position
from headrace.container import replica_folder


def test_a_folder_that_is_made_anew_is_another_incarnation(tmp_path: Path) -> None:
    """Invariant 5."""
    first = replica_folder.prepare(tmp_path / "7")
    assert replica_folder.prepare(tmp_path / "7") == first
    replica_folder.remove(tmp_path / "7")
    assert replica_folder.prepare(tmp_path / "7").format != first.format


def test_a_folder_for_which_there_is_no_room_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_fd: int, _buffers: object, _offset: int) -> int:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(StorageFull):
        replica_folder.prepare(tmp_path / "7")
    assert not list(tmp_path.iterdir())


def test_a_folder_from_before_replicas_had_incarnations_keeps_its_nodes(tmp_path: Path) -> None:
    (tmp_path / "00000000000000000000.chunk").touch()
    assert replica_folder.prepare(tmp_path, unmarked="the node's").format == "the node's"


def test_without_sync_another_start_of_the_machine_is_another_incarnation(tmp_path: Path) -> None:
    state = replica_folder.after_page_cache(tmp_path, replica_folder.prepare(tmp_path))
    assert replica_folder.after_page_cache(tmp_path, state) == state
    other = structs.replace(state, boot="another start of the machine")
    replica_folder.write(tmp_path, other)
    assert replica_folder.after_page_cache(tmp_path, other).format != state.format


def test_a_clean_end_keeps_the_incarnation_over_a_start_of_the_machine(tmp_path: Path) -> None:
    state = replica_folder.after_page_cache(tmp_path, replica_folder.prepare(tmp_path))
    replica_folder.left_clean(tmp_path, state, held=Position(0))
    found = replica_folder.read(tmp_path)
    assert found is not None
    assert found.boot == ""
    assert replica_folder.after_page_cache(tmp_path, found).format == state.format


@pytest.mark.parametrize("step", ["read", "sync_files", "write"])
def test_a_folder_that_is_removed_meanwhile_is_not_left_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A node shuts down while a container is being deleted."""
    folder = tmp_path / "7"
    state = replica_folder.after_page_cache(folder, replica_folder.prepare(folder))
    taken = getattr(replica_folder, step)

    def removed_before(*args: Any, **options: Any) -> Any:
        replica_folder.remove(folder)
        return taken(*args, **options)

    monkeypatch.setattr(replica_folder, step, removed_before)
    replica_folder.left_clean(folder, state, held=Position(0))
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_a_folder_that_stays_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = replica_folder.after_page_cache(tmp_path, replica_folder.prepare(tmp_path))

    def fails(_folder: Path) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(replica_folder, "sync_files", fails)
    with pytest.raises(FileNotFoundError):
        replica_folder.left_clean(tmp_path, state, held=Position(0))


@pytest.mark.parametrize(
    "text",
    ["{", '{"format": "x"}', f'{{"format": "{uuid.UUID(int=1)}", "record": "{{q}}"}}'],
    ids=["as a whole", "its format", "the container's record"],
)
def test_a_damaged_file_is_reported(tmp_path: Path, text: str) -> None:
    """A file that passed as intact failed where all replicas of a node are examined, and the remaining ones were
    skipped."""
    (tmp_path / "replica.json").write_text(text)
    with pytest.raises(CorruptLog, match="cannot be read"):
        replica_folder.read(tmp_path)


def test_a_file_that_the_disk_cannot_read_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "replica.json").symlink_to("/proc/self/mem")  # what is read at its start is EIO
    with pytest.raises(CorruptLog, match="the disk cannot read"):
        replica_folder.read(tmp_path)


def test_a_file_that_cannot_be_read_for_another_reason_is_not_damaged(tmp_path: Path) -> None:
    (tmp_path / "replica.json").mkdir()
    with pytest.raises(IsADirectoryError):
        replica_folder.read(tmp_path)


def test_a_crash_in_a_removal_leaves_nothing_of_the_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 14: the rest of a replica that was discarded must not count as a replica."""
    folder = tmp_path / "7"
    before = replica_folder.prepare(folder)
    (folder / f"{0:020d}.chunk").write_bytes(b"what is to go")

    def crashes(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda path, **_: crashes() if path.exists() else None)
        with pytest.raises(KeyboardInterrupt):
            replica_folder.remove(folder)
    after = replica_folder.prepare(folder, unmarked="the node's own format")
    assert after.format not in (before.format, "the node's own format")
    assert not list(folder.glob("*.chunk"))
    replica_folder.sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["7"]


def test_what_the_disk_cannot_remove_of_one_keeps_no_other_from_going(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "7"
    formats = set()
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        for _ in range(3):
            formats.add(replica_folder.prepare(folder).format)
            replica_folder.remove(folder)
        for _ in range(2):
            set_aside = replica_folder.prepare(folder)
            replica_folder.set_aside(folder)
            assert replica_folder.read(tmp_path / "7.damaged") == set_aside
            replica_folder.drop_aside(folder)
            assert not replica_folder.has_aside(folder)
    assert len(formats) == 3
    replica_folder.sweep(tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_is_left_of_a_damaged_one_and_cannot_be_moved_either_keeps_nobody_from_following(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "7"
    replica_folder.prepare(folder)
    replica_folder.set_aside(folder)

    def fails(*_: object) -> None:
        raise OSError(errno.EUCLEAN, os.strerror(errno.EUCLEAN))

    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    monkeypatch.setattr(Path, "rename", fails)
    replica_folder.drop_aside(folder)
    assert replica_folder.has_aside(folder)


@pytest.mark.parametrize("call", ["lseek", "stat", "listdir"])
def test_one_that_cannot_be_written_again_as_the_disk_cannot_read_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    folder = tmp_path / "7"
    state = replica_folder.prepare(folder)
    (folder / f"{0:020d}.chunk").write_bytes(b"frames")

    def fails(what: object, *_: object, **__: object) -> None:
        name = None if isinstance(what, int) else str(what)
        raise OSError(errno.EUCLEAN, os.strerror(errno.EUCLEAN), name)

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fails)
        with pytest.raises(CorruptLog, match="the disk cannot read it"):
            replica_folder.written_back(folder, state)


def test_a_replica_that_is_not_there_can_be_removed(tmp_path: Path) -> None:
    replica_folder.remove(tmp_path / "7")
    assert not list(tmp_path.iterdir())
