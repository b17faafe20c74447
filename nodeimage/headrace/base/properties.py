"""Java properties, as in the files of Kafka's clients. Pure."""

import re
from collections.abc import Iterator
from typing import Final

from headrace.base.errors import HeadraceError

_LINE_END: Final = re.compile(r"\r\n|\r|\n")
"""Not all that `splitlines` takes for one: a password may contain such a character."""
_ESCAPED: Final = re.compile(r"(?:\\u[0-9a-fA-F]{4})+")
"""The only one of Java's escapes that is decoded: other backslashes may be literal ones, as for librdkafka."""


def parse_properties(text: str) -> dict[str, str]:
    """The values by name.

    Raises HeadraceError for a line without `=`; the message does not quote the line, which may be a secret.
    """
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise HeadraceError("a line of the properties is not NAME=VALUE")
        found[name.strip()] = _ESCAPED.sub(_unescaped, value.strip())
    return found


def _logical_lines(text: str) -> Iterator[str]:
    """The lines that are neither blank nor comments, each joined with its continuation lines, without their leading
    blanks. A line continues if it ends with an odd number of backslashes; a comment never does (java.util.Properties).
    """
    begun = ""
    goes_on = False
    for line in map(str.lstrip, _LINE_END.split(text)):
        if not goes_on and (not line or line.startswith(("#", "!"))):
            continue
        goes_on = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        begun += line[:-1] if goes_on else line
        if not goes_on:
            if begun.strip():
                yield begun
            begun = ""
    if begun.strip():
        yield begun


def property_line(name: str, value: str) -> str:
    """A line that Java clients can read, and librdkafka too if it is all ASCII: other characters are escaped.

    Raises HeadraceError for a value with a backslash, which only one of them takes literally, and for a value that a
    line cannot hold.
    """
    if not value.isprintable() or "\\" in value or value != value.strip():
        raise HeadraceError(
            f"{name} cannot be written to a file that every client can read: it must be one line without a backslash"
        )
    return f"{name}={''.join(each if each.isascii() else _escaped(each) for each in value)}\n"


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _unescaped(match: re.Match[str]) -> str:
    return bytes.fromhex(match[0].replace("\\u", "")).decode("utf-16-be", "replace")
