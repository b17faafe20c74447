"""What is told where there is no cluster, or none that answers."""

from collections.abc import Callable
from typing import Any

import pytest

Headrace = Callable[..., Any]


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("stream", "list"),
        ("topic", "create", "/a:b"),
        ("produce", "/a:b", "--value", "x"),
        ("consume", "/a:b"),
        ("groups",),
        ("chain", "/a:b"),
        ("scrub",),
        ("bench",),
        ("node", "list"),
        ("node", "add"),
        ("node", "start", "1"),
        ("node", "drain", "1"),
        ("node", "remove", "1"),
        ("balance",),
        ("volume", "list"),
        ("containers",),
        ("recover-unclean", "2"),
    ],
)
def test_without_a_cluster_every_command_says_how_to_start_one(headrace: Headrace, arguments: tuple[str, ...]) -> None:
    assert "`headrace up`" in headrace(*arguments).refused()


def test_a_cluster_that_does_not_answer_is_named(headrace: Headrace) -> None:
    assert "127.0.0.1:1" in headrace("status", "--bootstrap", "127.0.0.1:1").refused()
    assert "HOST:PORT" in headrace("status", "--bootstrap", "host:port").refused()
