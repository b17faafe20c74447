"""Quotes words of commands that messages advise, so that the commands can be pasted into a shell. Pure."""

import os
import shlex
from pathlib import Path


def quoted(word: str | Path) -> str:
    """The word in a form that a shell reads: bare, in quotes, or as `$'...'` if it has unprintable characters."""
    text = os.fspath(word)
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(map(_in_dollar_quotes, text)) + "'"


def data_option(folder: Path | None) -> str:
    """` --data FOLDER`, or nothing if the user named no folder."""
    return f" --data {quoted(folder)}" if folder else ""


def _in_dollar_quotes(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))
