import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.base.errors import FolderRefused
from headrace.local.folder import (
    ClusterFile,
    NodeProcess,
    default_folder,
    open_folder,
    read_cluster_file,
    start_lock,
    write_cluster_file,
)

NODE = NodeProcess(name="node-1", port=9092, pid=1, created=0.5, node_id=3)


def test_the_cluster_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    cluster = ClusterFile(state="ready", nodes=(NODE,))
    write_cluster_file(tmp_path, cluster)
    assert read_cluster_file(tmp_path) == cluster
    assert cluster.bootstrap == "127.0.0.1:9092"
    assert os.listdir(tmp_path) == ["cluster.json"]


def test_a_file_of_the_version_before_names_processes_by_their_time_of_creation(tmp_path: Path) -> None:
    node = '{"name": "node-1", "port": 9092, "pid": 1, "created": 0.5, "node_id": 3, "options": []}'
    (tmp_path / "cluster.json").write_text(f'{{"version": 1, "state": "ready", "nodes": [{node}]}}')
    assert read_cluster_file(tmp_path) == ClusterFile(state="ready", nodes=(NODE,))


def test_a_folder_without_a_cluster_file_has_no_cluster(tmp_path: Path) -> None:
    assert read_cluster_file(tmp_path) is None
    assert read_cluster_file(tmp_path / "missing") is None


@pytest.mark.parametrize("written", ['{"version": 99}', "{", '{"version": 1, "nodes": 3}', "[]", ""])
def test_a_cluster_file_that_is_damaged_or_newer_is_refused(tmp_path: Path, written: str) -> None:
    (tmp_path / "cluster.json").write_text(written)
    with pytest.raises(FolderRefused, match=r"cluster\.json"):
        read_cluster_file(tmp_path)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderRefused, match="--data"):
        open_folder(tmp_path / "file" / "folder")


def test_only_the_owner_may_enter_a_new_folder(tmp_path: Path) -> None:
    folder = open_folder(tmp_path / "new")
    assert folder.stat().st_mode & 0o077 == 0


def test_the_default_folder_can_be_named_in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_DATA", str(tmp_path))
    assert default_folder() == tmp_path
    monkeypatch.delenv("HEADRACE_DATA")
    assert default_folder() == Path.home() / ".headrace"


def test_one_start_at_a_time(tmp_path: Path) -> None:
    with start_lock(tmp_path), pytest.raises(FolderRefused, match="starting or stopping"), start_lock(tmp_path):
        pass
    with start_lock(tmp_path):
        pass


def test_a_start_that_was_killed_locks_nobody_out(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from headrace.local.folder import start_lock\n"
        "with start_lock(Path(sys.argv[1])): print(1, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(FolderRefused), start_lock(tmp_path):
            pass
        other.kill()
    with start_lock(tmp_path):
        pass
