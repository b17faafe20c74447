"""`headrace context`, as people type it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Headrace = Callable[..., Any]


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    """A user's properties, in a private file."""
    path = tmp_path / "alice.properties"
    path.write_text(
        "bootstrap.servers=127.0.0.1:1\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        "sasl.username=alice\nsasl.password=s3cret\n"
    )
    path.chmod(0o600)
    return path


def test_a_context_is_made_used_shown_and_forgotten(headrace: Headrace, properties: Path) -> None:
    assert "no contexts" in headrace("context", "list").err
    assert headrace("context", "set", "factory", "--config", str(properties)).code == 0
    assert headrace("context", "set", "plain", "-b", "127.0.0.1:2").code == 0
    listed = headrace("context", "list", "-o", "json").json
    assert [(each["context"], each["in_use"]) for each in listed] == [("factory", False), ("plain", False)]
    assert headrace("context", "use", "factory").code == 0
    shown = headrace("context", "show", "-o", "json").json
    assert (shown["context"], shown["bootstrap"], shown["user"]) == ("factory", "127.0.0.1:1", "alice")
    assert "s3cret" not in headrace("context", "show").out + headrace("context", "list").out
    assert headrace("context", "delete", "factory").code == 0
    assert "no context is in use" in headrace("context", "show").refused()
    assert "there is no context 'factory'" in headrace("context", "use", "factory").refused()


def test_the_one_in_use_says_where_the_cluster_is(headrace: Headrace) -> None:
    headrace("context", "set", "plain", "-b", "127.0.0.1:1", "--use")
    nowhere = {"HEADRACE_DATA": ""}
    assert "127.0.0.1:1 cannot be reached" in headrace("status", **nowhere).refused()
    headrace("context", "use", "--none")
    assert "no cluster runs in" in headrace("status", **nowhere, HOME="/nonexistent").refused()


def test_what_makes_no_context_is_refused(headrace: Headrace, tmp_path: Path) -> None:
    assert "say where the cluster is" in headrace("context", "set", "a").refused()
    assert "nothing cannot be read" in headrace("context", "set", "a", "--config", str(tmp_path / "nothing")).refused()
    assert "is not an address" in headrace("context", "set", "a", "-b", "h:x").refused()
    assert "cannot be a context's name" in headrace("context", "set", "a/b", "-b", "h:1").refused()
    assert "give the NAME" in headrace("context", "use").refused(code=2)
    broken = tmp_path / "broken"
    broken.write_text("security.protocol=TLS\nsasl.password=s3cret\n")
    broken.chmod(0o600)
    refused = headrace("context", "set", "a", "--config", str(broken)).refused()
    assert "security.protocol is one of" in refused
    assert "s3cret" not in refused
