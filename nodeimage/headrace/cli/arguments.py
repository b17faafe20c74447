"""What every command requires of its arguments, whatever they mean: text is UTF-8, and numbers can be sent.

An argument may be any bytes, and a number of any size: a value that a command cannot use is refused with the argument's
name, before anything is done. Arguments that are bytes of records, or name a file, are marked with `AnyBytes`.
"""

import functools
import inspect
import math
import os
import sys
from collections.abc import Callable
from typing import Any, Final, get_type_hints

import typer

from headrace.cli.text import is_utf8, printable

LARGEST_INT: Final = 2**63 - 1
"""Largest integer that can be sent to a cluster."""
LARGEST_FLOAT: Final = 1e9
"""Largest float: thirty years in seconds, which every clock supports and nobody waits for."""
LARGEST_INT32: Final = 2**31 - 1


class AnyBytes:
    """Marks a parameter whose text may be any bytes (text.py: surrogates)."""


ANY_BYTES: Final = AnyBytes()


def check_commands(app: typer.Typer) -> None:
    """Make every command of `app` refuse arguments that it cannot use. Call this once, after all commands are
    registered."""
    for command in app.registered_commands:
        command.callback = _checked(command.callback) if command.callback else None
    for group in app.registered_groups:
        if group.typer_instance is not None:
            check_commands(group.typer_instance)
    if app.registered_callback is not None and app.registered_callback.callback is not None:
        app.registered_callback.callback = _checked(app.registered_callback.callback)


def ensure_utf8_mode() -> None:
    """Restart the process in Python's UTF-8 mode if the locale is another, so that arguments decode to exactly the
    bytes that were given.

    Does not return if it restarts. From then on everything reads and writes UTF-8 whatever the locale says, as the
    cluster does.
    """
    if sys.getfilesystemencoding() == "utf-8" or not sys.executable:
        return
    os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def _checked(callback: Callable[..., Any]) -> Callable[..., Any]:
    if hasattr(callback, "is_checked"):
        return callback

    @functools.wraps(callback)
    def run(*given: Any, **named: Any) -> Any:
        for name, value in named.items():
            for each in value if isinstance(value, list) else (value,):
                if (fault := _fault(each)) is not None and not (isinstance(each, str) and _any_bytes(callback, name)):
                    raise typer.BadParameter(f"{_shown_name(callback, name)}: {fault}")
        return callback(*given, **named)

    run.is_checked = True  # type: ignore[attr-defined]
    return run


def _fault(value: Any) -> str | None:
    match value:
        case bool():
            return None
        case str() if not is_utf8(value):
            return f"'{printable(value)}' is not UTF-8"
        case int() if abs(value) > LARGEST_INT:
            return f"it is at most {LARGEST_INT}"
        case float() if not math.isfinite(value) or abs(value) > LARGEST_FLOAT:
            return f"{value} is not a number up to {LARGEST_FLOAT:.0f}"
        case _:
            return None


def _any_bytes(callback: Callable[..., Any], name: str) -> bool:
    return any(isinstance(each, AnyBytes) for each in _metadata(callback, name))


def _shown_name(callback: Callable[..., Any], name: str) -> str:
    """The parameter's name as the user writes it."""
    for each in _metadata(callback, name):
        words = [word for word in getattr(each, "param_decls", None) or () if word.startswith("--")]
        if words:
            return str(words[0]).partition("/")[0]
        if type(each).__name__ == "ArgumentInfo":
            return str(getattr(each, "metavar", None) or name.upper())
    return f"--{name.replace('_', '-')}"


def _metadata(callback: Callable[..., Any], name: str) -> tuple[Any, ...]:
    hint = get_type_hints(inspect.unwrap(callback), include_extras=True).get(name)
    return getattr(hint, "__metadata__", ())
