"""Which cluster a command is for: given by address or by folder, never both."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Headrace = Callable[..., Any]


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("stream", "delete", "/a", "--force"),
        ("topic", "create", "/a:b"),
        ("produce", "/a:b", "--value", "x"),
        ("consume", "/a:b"),
        ("groups",),
        ("groups", "delete", "g"),
        ("node", "remove", "1"),
        ("recover-unclean", "2", "--yes"),
    ],
)
def test_a_folder_on_the_command_line_beats_a_cluster_named_in_the_environment(
    headrace: Headrace, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    ran = headrace(*arguments, "--data", str(tmp_path / "b"), HEADRACE_BOOTSTRAP="127.0.0.1:1")
    assert f"no cluster runs in {tmp_path / 'b'}" in ran.refused()


def test_in_the_environment_an_address_beats_a_folder(headrace: Headrace, tmp_path: Path) -> None:
    assert "127.0.0.1:1" in headrace("status", HEADRACE_BOOTSTRAP="127.0.0.1:1", HEADRACE_DATA=str(tmp_path)).refused()


@pytest.mark.parametrize("turned", [False, True])
def test_a_cluster_is_named_by_address_or_by_folder_never_by_both(headrace: Headrace, turned: bool) -> None:
    named = [("--bootstrap", "127.0.0.1:1"), ("--data", "b")]
    first, second = reversed(named) if turned else named
    assert "exclude each other" in headrace("stream", "delete", "/a", "--force", *first, *second).refused(code=2)
