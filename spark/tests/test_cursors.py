"""What is reported of a batch's sources: Headrace's ones, with their lag."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_spark import cursors
from headrace_spark.cursors import CursorListener, lag


def source(end: object, latest: object) -> Any:
    return SimpleNamespace(endOffset=json.dumps(end), latestOffset=json.dumps(latest))


def progress(*sources: Any) -> Any:
    return SimpleNamespace(sources=list(sources))


OURS = ({"group": "g", "positions": {}}, {"bootstrap": [["h", 1]], "lag": 5})


def test_the_lag_is_of_all_sources_of_ours() -> None:
    assert lag(progress(source(*OURS), source(OURS[0], {**OURS[1], "lag": 7}))) == 12
    assert lag(progress()) == 0


def test_sources_of_others_are_left_aside() -> None:
    others = (
        SimpleNamespace(endOffset="not JSON", latestOffset="7"),
        SimpleNamespace(endOffset=None, latestOffset=None),
        source(7, 9),
        source({"positions": {}}, OURS[1]),
        source(OURS[0], {"bootstrap": []}),
    )
    assert lag(progress(*others, source(*OURS))) == 5


def test_cursors_are_committed_as_the_file_of_properties_says_and_by_nobody_without_a_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reached: list[Any] = []

    @contextmanager
    def cluster(connection: Any) -> Iterator[None]:
        reached.append(connection)
        yield

    monkeypatch.setattr(cursors, "Cluster", cluster)
    monkeypatch.setattr(cursors, "commit_cursors", lambda *_: None)
    by_file = source(OURS[0], {**OURS[1], "properties_file": "/f"})
    by_options = source(OURS[0], {"lag": 5})
    event: Any = SimpleNamespace(progress=progress(by_options, by_file))
    CursorListener().onQueryProgress(event)
    (connection,) = reached
    assert (connection.bootstrap, connection.properties_file) == ((("h", 1),), "/f")
