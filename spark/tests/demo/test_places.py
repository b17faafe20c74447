"""The demo's folder: one demo at a time, and a fresh start."""

from pathlib import Path

import pytest

from headrace_spark.demo.places import Places, Unsound, shown


def test_one_demo_at_a_time_has_the_folder(tmp_path: Path) -> None:
    places = Places(tmp_path / "demo")
    with places.alone(), pytest.raises(Unsound, match="another demo runs"), Places(tmp_path / "demo").alone():
        pass
    with places.alone():
        pass


def test_a_fresh_start_leaves_nothing_of_the_last_demo_and_all_else(tmp_path: Path) -> None:
    places = Places(tmp_path)
    for path in (places.data / "node-1", places.results, places.scratch):
        path.mkdir(parents=True)
    places.ledger.write_text("old")
    (tmp_path / "own.txt").write_text("the user's")
    places.clear()
    assert not places.data.exists(), "the cluster makes it"
    assert [list(folder.iterdir()) for folder in (places.results, places.logs, places.scratch)] == [[], [], []]
    assert (tmp_path / "own.txt").exists()


def test_a_path_is_shown_as_it_would_be_typed_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown(tmp_path / "demo" / "x.png") == "demo/x.png"
    assert shown(Path("/elsewhere/x.png")) == "/elsewhere/x.png"
