"""Who runs a command, according to the command line: --user, --password-file, --tls-ca, --config, --context.

These options may precede the command (`headrace --user alice topic list`) or follow it, if the command talks to a
cluster and has no option of the same name. Their values, and where the cluster is, are kept for the one command that
runs; `target.py` turns them into addresses and credentials.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from headrace.cli.options import is_given

User = Annotated[
    str | None,
    typer.Option("--user", metavar="NAME", help="Log in as this user (SCRAM-SHA-512)", show_default=False),
]
PasswordFile = Annotated[
    Path | None,
    typer.Option("--password-file", metavar="FILE", help="File with the user's password, one line", show_default=False),
]
TlsCa = Annotated[
    Path | None,
    typer.Option("--tls-ca", metavar="FILE", help="CA of the nodes' certificates, PEM", show_default=False),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="File with client properties, named as in Kafka", show_default=False),
]
ContextName = Annotated[
    str | None,
    typer.Option("--context", metavar="NAME", help="Context to use: see `headrace context`", show_default=False),
]
OPTIONS: Final[Mapping[str, Any]] = {
    "user": User,
    "password_file": PasswordFile,
    "tls_ca": TlsCa,
    "config": Config,
    "context_name": ContextName,
}


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The options on the command line; None: not given."""

    user: str | None = None
    password_file: Path | None = None
    tls_ca: Path | None = None
    config: Path | None = None
    context_name: str | None = None
    bootstrap_given: bool = False
    """Whether `--bootstrap` is on the command line itself, not only in the environment."""
    data_given: bool = False


NO_OPTIONS: Final = ClientOptions()
_current: ContextVar[ClientOptions] = ContextVar("client_options", default=NO_OPTIONS)


def client_options() -> ClientOptions:
    """The options of the running command."""
    return _current.get()


def begin(options: ClientOptions) -> None:
    """Start a command with the options that precede its name."""
    _current.set(options)


def add_client_options(app: typer.Typer) -> None:
    """Add this module's options to every command of `app` that talks to a cluster. Call this once, after all commands
    are registered."""
    for command in app.registered_commands:
        command.callback = _with_client_options(command.callback) if command.callback else None
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_client_options(group.typer_instance)
    if app.registered_callback is not None and app.registered_callback.callback is not None:
        app.registered_callback.callback = _with_client_options(app.registered_callback.callback)


def _with_client_options(callback: Callable[..., Any]) -> Callable[..., Any]:
    """The command with these options added. Its help does not list them; that of `headrace` does."""
    own = inspect.signature(callback, eval_str=True)
    if "bootstrap" not in own.parameters or hasattr(callback, "has_client_options"):
        return callback
    added = [name for name in OPTIONS if not _is_taken(name, own)]
    context = next((name for name, each in own.parameters.items() if each.annotation is typer.Context), None)

    @functools.wraps(callback)
    def run(**named: Any) -> Any:
        invoked = named[context] if context else named.pop("typer_context")
        given = {name: value for name in added if (value := named.pop(name)) is not None}
        _current.set(
            replace(
                client_options(),
                bootstrap_given=is_given(invoked, "bootstrap"),
                data_given=is_given(invoked, "data"),
                **given,
            )
        )
        return callback(**named)

    more = (
        []
        if context
        else [inspect.Parameter("typer_context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    )
    more += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_hidden(OPTIONS[name]))
        for name in added
    ]
    run.__signature__ = own.replace(parameters=[*own.parameters.values(), *more])  # type: ignore[attr-defined]
    run.has_client_options = True  # type: ignore[attr-defined]
    return run


def _is_taken(name: str, own: inspect.Signature) -> bool:
    """Whether the command has an option with the same name and another meaning."""
    words = set(_words(OPTIONS[name]))
    return name in own.parameters or any(words & set(_words(each.annotation)) for each in own.parameters.values())


def _words(annotation: Any) -> list[str]:
    """All spellings of an option, such as `--user`."""
    found: list[str] = []
    for each in getattr(annotation, "__metadata__", ()):
        words = (getattr(each, "default", None), *(getattr(each, "param_decls", None) or ()))
        found += [part for word in words if isinstance(word, str) and word.startswith("-") for part in word.split("/")]
    return found


def _hidden(annotation: Any) -> Any:
    (option,) = annotation.__metadata__
    option = copy(option)
    option.hidden = True
    return Annotated[annotation.__origin__, option]
