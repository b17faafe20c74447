"""What is told of a batch's sources: those that are ours, with their lag."""

import json
from types import SimpleNamespace
from typing import Any

from headrace_spark.cursors import lag


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
