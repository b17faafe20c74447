"""Options with expressions, and reports about a change: on stderr, so that stdout stays one result."""

import pytest

from headrace.cli.access_options import expressions, items, split_warnings


def test_what_is_given_is_an_expression_the_empty_one_too() -> None:
    given = expressions("u:a", None, None, "", None)
    assert given == {"produce": "u:a", "copy": ""}
    assert items("/s", {**given, "admin": None}) == [
        {"object": "/s", "permission": "produce", "expression": "u:a"},
        {"object": "/s", "permission": "copy", "expression": ""},
        {"object": "/s", "permission": "admin", "expression": None},
    ]


def test_warnings_and_nodes_that_are_late_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    left = split_warnings({"user": "a", "warnings": ["the cluster has no user b"], "not_applied": [2, 3]})
    assert left == {"user": "a"}
    first, second = capsys.readouterr().err.splitlines()
    assert first == "warning: the cluster has no user b"
    assert "the change is stored, but nodes 2, 3 have not confirmed" in second
    split_warnings({"not_applied": [2]})
    assert "node 2 has not confirmed" in capsys.readouterr().err
    split_warnings({"not_applied": [], "warnings": []})
    assert capsys.readouterr().err == ""
