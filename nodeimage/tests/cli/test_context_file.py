"""The contexts' file: its contents, and that others cannot read it."""

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.context_file import (
    Context,
    Contexts,
    ContextsRefused,
    checked_name,
    contexts_path,
    read_contexts,
    write_contexts,
)


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_there_are_none_without_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_contexts() == Contexts()
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", "")
    assert read_contexts() == Contexts()


TEXTS = st.text(st.characters(codec="utf-8")).filter(str.isprintable)


@given(bootstrap=TEXTS, config=TEXTS)
def test_what_is_written_is_read(bootstrap: str, config: str) -> None:
    contexts = Contexts("a.b", {"a.b": Context(bootstrap, config), "plain": Context("h:1")})
    write_contexts(contexts)
    assert read_contexts() == contexts


def test_the_file_is_its_owners_alone() -> None:
    write_contexts(Contexts())
    assert stat.S_IMODE(contexts_path().stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "text", ["current = 1", "context = 1", "[context.a]\nport = 1", "[context.a]\nconfig = 1", "=", "[context]\na = 1"]
)
def test_a_file_that_is_another_is_refused_by_name(text: str) -> None:
    write_contexts(Contexts())
    contexts_path().write_text(text)
    with pytest.raises(ContextsRefused, match=r"contexts\.toml cannot be understood"):
        read_contexts()


def test_what_cannot_be_kept_is_refused() -> None:
    with pytest.raises(ContextsRefused, match="it has characters that are not printable"):
        write_contexts(Contexts("", {"a": Context("h:1\n")}))
    for name in ("", "-a", "a b", "a" * 64):
        with pytest.raises(ContextsRefused, match="cannot be a context's name"):
            checked_name(name)
    with pytest.raises(ContextsRefused, match="there is no context 'b'; there are a: `headrace context set`"):
        Contexts("", {"a": Context("h:1")}).get("b")
