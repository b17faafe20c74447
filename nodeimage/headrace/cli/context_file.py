"""The contexts of this user: names for clusters, and which one is in use.

    ~/.config/headrace/contexts.toml            or below XDG_CONFIG_HOME

    current = "factory"

    [context.factory]
    bootstrap = "kafka.example:9093"            "": what the properties say (bootstrap.servers)
    config = "/home/alice/factory.properties"   client properties in Kafka's names; "": none

The file contains no secret: passwords are in the files that `config` names.
"""

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headrace.base.errors import FolderRefused, HeadraceError
from headrace.local.folder import expanded
from headrace.security import secret_files

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_KEYS: Final = ("bootstrap", "config")


class ContextsRefused(HeadraceError):
    """The contexts' file, or a name in it, cannot be used."""


@dataclass(frozen=True, slots=True)
class Context:
    """A cluster. At least one of the two fields is set."""

    bootstrap: str = ""
    config: str = ""


@dataclass(frozen=True, slots=True)
class Contexts:
    """The contents of the file."""

    current: str = ""
    """The name of the context in use; "": none."""
    by_name: Mapping[str, Context] = field(default_factory=dict)

    def get(self, name: str) -> Context:
        """The context with this name. Raises ContextsRefused if there is none."""
        if name not in self.by_name:
            there = f"there are {', '.join(sorted(self.by_name))}" if self.by_name else "there is none"
            raise ContextsRefused(f"there is no context {name!r}; {there}: `headrace context set` makes one")
        return self.by_name[name]


def contexts_path() -> Path:
    """The path of the file. Raises FolderRefused if there is no home directory."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else expanded(Path("~")) / ".config") / "headrace" / "contexts.toml"


def read_contexts() -> Contexts:
    """The contexts; empty if there is no file. Raises ContextsRefused for a file that cannot be understood."""
    try:
        path = contexts_path()
        text = path.read_text(encoding="utf-8")
    except (FolderRefused, FileNotFoundError, NotADirectoryError):
        return Contexts()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ContextsRefused(f"{path} cannot be read: {why}") from None
    try:
        return _contexts(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, ValueError) as error:
        raise ContextsRefused(f"{path} cannot be understood: {error}; mend it, or delete it") from None


def write_contexts(contexts: Contexts) -> None:
    """Write the contexts to the file. Raises ContextsRefused."""
    lines = [f"current = {_text(contexts.current)}\n"]
    for name, context in sorted(contexts.by_name.items()):
        lines.append(f"\n[context.{_text(name)}]\n")
        lines += [f"{key} = {_text(value)}\n" for key in _KEYS if (value := getattr(context, key))]
    path = contexts_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        secret_files.write(path, "".join(lines))
    except OSError as error:
        raise ContextsRefused(f"{path} cannot be written: {error.strerror}") from None


def checked_name(name: str) -> str:
    """Return the name, if it is valid for a context. Raises ContextsRefused."""
    if not _NAME.fullmatch(name):
        raise ContextsRefused(f"{name!r} cannot be a context's name: it has 1 to 63 letters, digits, `.`, `_` and `-`")
    return name


def _contexts(document: Mapping[str, Any]) -> Contexts:
    current, tables = document.get("current", ""), document.get("context", {})
    if not isinstance(current, str) or not isinstance(tables, dict):
        raise ValueError("current is text, and contexts begin with [context.NAME]")
    by_name = {}
    for name, table in tables.items():
        known = isinstance(table, dict) and set(table) <= set(_KEYS)
        if not known or not all(isinstance(value, str) for value in table.values()):
            raise ValueError(f"context {name} holds {' and '.join(_KEYS)}, as text")
        by_name[name] = Context(**table)
    return Contexts(current, by_name)


def _text(value: str) -> str:
    """A TOML basic string, which equals JSON's for printable text."""
    if not value.isprintable():
        raise ContextsRefused(f"{value!r} cannot be kept: it has characters that are not printable")
    return json.dumps(value, ensure_ascii=False)
