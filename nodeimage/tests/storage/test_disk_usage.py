"""The bytes that replicas occupy on the disk."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headrace.base.ids import ContainerId
from headrace.storage.disk_usage import allocated, chunk_paths


def test_holes_and_files_that_have_gone_take_nothing(tmp_path: Path) -> None:
    whole, sparse = tmp_path / "a.chunk", tmp_path / "b.chunk"
    whole.write_bytes(os.urandom(8192))
    with sparse.open("wb") as file:
        file.truncate(1 << 20)
    found = allocated({ContainerId(1): [whole, tmp_path / "gone.chunk"], ContainerId(2): [sparse], ContainerId(3): []})
    assert found == {1: 8192, 2: 0, 3: 0}


def test_the_files_of_all_replicas_count_whatever_their_role(tmp_path: Path) -> None:
    def replica(number: int, *names: str) -> Any:
        chunks = [SimpleNamespace(path=tmp_path / name) for name in names]
        return SimpleNamespace(id=ContainerId(number), log=SimpleNamespace(chunks=lambda: chunks))

    replicas: Any = SimpleNamespace(all=lambda: [replica(1, "a", "b"), replica(2)])
    assert chunk_paths(replicas) == {1: [tmp_path / "a", tmp_path / "b"], 2: []}
