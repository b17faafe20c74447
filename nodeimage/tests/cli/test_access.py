"""`headrace access`, and the expressions of `headrace stream`, on a running node."""

from typing import Any

import pytest

from kit.commands_on_node import Headrace


@pytest.fixture
def stream(cluster: Any) -> str:
    found: str = cluster.stream()
    return found


def test_set_shown_listed_explained_and_removed(hr: Headrace, stream: str) -> None:
    words = ("--produce", "u:cli-a|g:x & !u:b", "--consume", "", "-o", "json")
    ran = hr("access", "set", stream, *words)
    assert [(each["permission"], each["expression"]) for each in ran.json] == [
        ("produce", "u:cli-a | g:x & !u:b"),
        ("consume", ""),
    ]
    assert "warning: the cluster has no users b, cli-a" in ran.err
    shown = {each["permission"]: each for each in hr("access", "show", f"{stream}:t", "-o", "json").json["permissions"]}
    assert (shown["produce"]["from"], shown["produce"]["inherited"]) == (stream, True)
    table = hr("access", "show", stream)
    assert "'' (nobody)" in table.out
    assert "security is off" in table.err
    assert stream in hr("access", "list").out
    assert {each["object"] for each in hr("access", "list", "-o", "json").json} >= {stream}
    (told,) = hr("access", "explain", "b", stream, "produce", "-g", "x", "-o", "json").json
    assert told["groups"] == ["x"]
    assert "everybody may do everything" in hr("access", "explain", "b", stream).out
    assert hr("access", "set", stream, "--remove", "produce", "--remove", "consume").code == 0
    assert stream not in {each["object"] for each in hr("access", "list", "-o", "json").json}


def test_what_cannot_be_is_refused_with_one_line(hr: Headrace, stream: str) -> None:
    assert "at character 3" in hr("access", "set", stream, "--produce", "u:").refused()
    assert "write /stream" in hr("access", "set", "plant", "--produce", "p").refused()
    assert "no stream" in hr("access", "set", "/nowhere", "--produce", "p").refused()
    assert "give what to set" in hr("access", "set", stream).refused(code=2)
    assert "not both" in hr("access", "set", stream, "--copy", "p", "--remove", "copy").refused(code=2)
    assert hr("access", "set", stream, "--remove", "write").refused()


def test_a_stream_is_made_and_altered_with_expressions(hr: Headrace) -> None:
    made = hr("stream", "create", "/cli/owned", "--produce", "u:cli-a", "--admin", "g:x", "-o", "json")
    assert made.json["path"] == "/cli/owned"
    assert "warning: the cluster has no user cli-a" in made.err
    assert (
        hr("stream", "alter", "/cli/owned", "--produce", "p", "--ttl", "1d", "-o", "json").json["ttl_ms"] == 86_400_000
    )
    shown = {each["permission"]: each for each in hr("access", "show", "/cli/owned", "-o", "json").json["permissions"]}
    assert {name: each["expression"] for name, each in shown.items()} == {
        "produce": "p",
        "consume": None,
        "topic": None,
        "copy": None,
        "admin": "g:x",
    }
    assert "at character 1" in hr("stream", "create", "/cli/never", "--copy", "x:y").refused()
    assert "stream list" in hr("stream", "show", "/cli/never").refused()
    hr("stream", "delete", "/cli/owned")


def test_paths_of_the_cluster_are_refused(hr: Headrace) -> None:
    assert "/system" in hr("stream", "create", "/system/mine").refused()
