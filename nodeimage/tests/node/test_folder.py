"""Which node a data folder belongs to."""

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.base.errors import FolderRefused
from headrace.node.folder import FORMAT, DataFolder, Identity


def test_a_new_folder_has_no_identity_until_it_is_claimed(tmp_path: Path) -> None:
    folder = DataFolder.open(tmp_path / "node-1")
    assert folder.identity() is None
    folder.claim(Identity("c", 3, "f"))
    assert folder.identity() == Identity("c", 3, "f")
    folder.close()


def test_what_a_new_folder_is_to_be_is_the_same_until_it_is_claimed(tmp_path: Path) -> None:
    ids = itertools.count(3)
    for _ in range(2):
        folder = DataFolder.open(tmp_path)
        reserved = folder.reserved("c", lambda: next(ids))
        assert reserved.node_id == 3
        assert folder.reserved("c", lambda: next(ids)) == reserved
        assert folder.identity() is None
        folder.close()
    assert folder.reserved("another", lambda: next(ids)).node_id == 4
    folder.claim(reserved)
    assert folder.reserved("c", lambda: next(ids)).node_id == 5
    assert folder.identity() == reserved
    assert folder.reserved("c", lambda: next(ids)).node_id == 6, "what a claimed folder has left of it is dropped"


@pytest.mark.parametrize("text", ["", "{", json.dumps({"format": FORMAT + 1, "cluster": "c", "node": 3, "id": "f"})])
def test_a_reservation_that_cannot_be_understood_is_made_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / "node.json.new").write_text(text)
    folder = DataFolder.open(tmp_path)
    assert folder.reserved("c", lambda: 4).node_id == 4
    folder.close()


def test_a_folder_is_waited_for_that_a_killed_process_left_to_one_that_it_was_starting(tmp_path: Path) -> None:
    """Between fork and exec a child process holds all files of its parent, including the lock."""
    script = (
        "import os, subprocess, sys\n"
        "from pathlib import Path\n"
        "from headrace.node.folder import DataFolder\n"
        f"folder = DataFolder.open(Path({str(tmp_path)!r}))\n"
        "os.set_inheritable(folder._lock, True)\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1)'], close_fds=False)\n"
        "os._exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 9
    began = time.monotonic()
    DataFolder.open(tmp_path).close()
    assert time.monotonic() - began > 0.2, "nobody had it"


def test_a_folder_in_use_is_refused_with_the_process_that_uses_it(tmp_path: Path) -> None:
    hold = (
        "from pathlib import Path; from headrace.node.folder import DataFolder; "
        f"folder = DataFolder.open(Path({str(tmp_path)!r})); print('held', flush=True); input()"
    )
    holder = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(FolderRefused, match=f"in use by process {holder.pid}"):
            DataFolder.open(tmp_path)
    finally:
        holder.communicate("\n")
    DataFolder.open(tmp_path).close()


def test_a_folder_of_another_cluster_is_refused(tmp_path: Path) -> None:
    folder = DataFolder.open(tmp_path)
    identity = Identity("ours", 1, "f")
    folder.claim(identity)
    with pytest.raises(FolderRefused, match="belongs to cluster ours"):
        folder.check_cluster(identity, "theirs")
    folder.close()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (json.dumps({"format": FORMAT + 1, "cluster": "c", "node": 1, "id": "f"}), "use a newer headrace"),
        ("{", "damaged"),
        ("{}", "damaged"),
    ],
)
def test_a_folder_that_cannot_be_understood_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "node.json").write_text(text)
    folder = DataFolder.open(tmp_path)
    with pytest.raises(FolderRefused, match=reason):
        folder.identity()
    folder.close()


def test_the_folder_of_a_node_that_was_removed_says_so(tmp_path: Path) -> None:
    (tmp_path / "containers").mkdir()
    (tmp_path / "node.json.removed").touch()
    folder = DataFolder.open(tmp_path)
    with pytest.raises(FolderRefused, match="was removed from its cluster"):
        folder.identity()
    folder.close()


def test_containers_without_an_identity_are_refused(tmp_path: Path) -> None:
    (tmp_path / "containers").mkdir()
    folder = DataFolder.open(tmp_path)
    with pytest.raises(FolderRefused, match=r"no node\.json"):
        folder.identity()
    folder.close()


def test_a_folder_on_a_full_disk_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is written within the file's present space."""
    DataFolder.open(tmp_path).close()
    held = (tmp_path / "lock").stat().st_size
    monkeypatch.setattr(os, "ftruncate", lambda fd, length: grown.append(length) if length < held else None)
    grown: list[int] = []
    DataFolder.open(tmp_path).close()
    assert grown == []


def noted(tmp_path: Path) -> Identity:
    folder = DataFolder(tmp_path, -1)
    found = folder.identity()
    assert found is not None
    return found


@pytest.fixture
def of_level_1(tmp_path: Path) -> DataFolder:
    folder = DataFolder(tmp_path, -1)
    folder.claim(Identity("c", 3, "f", level=1))
    return folder


def test_a_folder_that_was_put_back_does_not_know_the_run_that_registered_last(
    tmp_path: Path, of_level_1: DataFolder
) -> None:
    assert not noted(tmp_path).is_older_than("any", stopping=False), "nothing was noted yet"
    of_level_1.begins("first")
    copy = noted(tmp_path)
    of_level_1.begins("second", after="first")
    assert copy.is_older_than("second", stopping=False)
    for run in ("first", "second"):
        assert not noted(tmp_path).is_older_than(run, stopping=False), "the process ended before it had registered"


def test_a_folder_that_was_put_back_does_not_know_that_its_run_stopped(tmp_path: Path, of_level_1: DataFolder) -> None:
    of_level_1.begins("first")
    copy = noted(tmp_path)
    of_level_1.stops("first")
    assert copy.is_older_than("first", stopping=True)
    assert not copy.is_older_than("first", stopping=False), "it may have been killed"
    assert not noted(tmp_path).is_older_than("first", stopping=True)
    of_level_1.begins("second", after="first")
    assert not noted(tmp_path).is_older_than("first", stopping=True), "the store was put back as well"


def test_runs_that_never_registered_do_not_push_out_the_one_that_did(tmp_path: Path, of_level_1: DataFolder) -> None:
    of_level_1.begins("first")
    for number in range(200):
        of_level_1.begins(f"{number}", after="first")
        of_level_1.begins(f"{number}", after="first")
    assert not noted(tmp_path).is_older_than("first", stopping=False)
    assert len(noted(tmp_path).runs) < 70
    assert (tmp_path / "node.json").stat().st_size <= 4096, "it fits into the room that is kept for it"


def test_no_runs_are_noted_below_level_1_as_older_versions_would_not(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path, -1)
    folder.claim(Identity("c", 3, "f"))
    folder.begins("first")
    folder.stops("first")
    assert noted(tmp_path) == Identity("c", 3, "f")
    folder.fence(1)
    assert noted(tmp_path).runs == ()


def test_runs_are_noted_on_a_full_disk(tmp_path: Path, of_level_1: DataFolder) -> None:
    of_level_1.begins("first")
    rooms = (tmp_path / "node.json").stat().st_size, (tmp_path / "node.json.room").stat().st_size
    of_level_1.begins("second", after="first")
    of_level_1.stops("second")
    assert (tmp_path / "node.json").stat().st_size == rooms[0] == rooms[1], "nothing grew"
