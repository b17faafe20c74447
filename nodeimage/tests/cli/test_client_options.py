"""Who runs a command: options before or after its name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from headrace.cli.client_options import NO_OPTIONS, ClientOptions, add_client_options, begin, client_options
from headrace.cli.options import Bootstrap, DataFolder


@pytest.fixture(autouse=True)
def _nothing_said() -> Iterator[None]:
    begin(NO_OPTIONS)
    yield
    begin(NO_OPTIONS)


def said_by(*arguments: str) -> ClientOptions:
    """The options that a command finds."""
    app = typer.Typer()
    found: list[ClientOptions] = []

    @app.callback()
    def main(user: str | None = None) -> None:
        begin(ClientOptions(user=user))

    @app.command()
    def ask(bootstrap: Bootstrap = None, data: DataFolder = None) -> None:
        found.append(client_options())

    @app.command()
    def create(
        config: Annotated[list[str] | None, typer.Option("--config", "-c")] = None,
        password_file: str | None = None,
        bootstrap: Bootstrap = None,
        data: DataFolder = None,
    ) -> None:
        found.append(client_options())

    @app.command()
    def alone(context: typer.Context, bootstrap: Bootstrap = None, data: DataFolder = None) -> None:
        assert context.command.name == "alone"
        found.append(client_options())

    add_client_options(app)
    app(list(arguments), standalone_mode=False)
    (options,) = found
    return options


def test_an_option_stands_before_the_command_or_behind_it() -> None:
    assert said_by("--user", "alice", "ask").user == "alice"
    assert said_by("ask", "--user", "alice").user == "alice"
    assert said_by("--user", "alice", "ask", "--user", "bob").user == "bob"
    assert said_by("ask", "--config", "f", "--tls-ca", "ca").config == Path("f")
    assert said_by("alone", "--context", "c").context_name == "c"
    assert said_by("ask") == ClientOptions()


def test_a_commands_own_option_of_that_name_stays_its_own() -> None:
    options = said_by("create", "-c", "a=b", "--config", "c=d", "--password-file", "p", "--user", "alice")
    assert (options.user, options.config, options.password_file) == ("alice", None, None)


def test_what_says_where_the_cluster_is_is_told_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", "h:1")
    assert not said_by("ask").bootstrap_given
    assert said_by("ask", "-b", "h:2").bootstrap_given
    assert said_by("ask", "--data", "d").data_given


def test_every_command_that_connects_takes_them(headrace: Any) -> None:
    for command in (("status",), ("topic", "list"), ("groups",), ("groups", "list"), ("produce", "/a:b"), ("bench",)):
        assert "nowhere cannot be read" in headrace(*command, "--tls-ca", "/ca", "--config", "/nowhere").refused()
    assert "No such option" in headrace("context", "list", "--user", "alice").refused(code=2)


def test_an_option_that_is_no_text_is_refused_by_name(headrace: Any) -> None:
    assert "--user: " in headrace("status", "--user", "caf\udce9").refused(code=2)
