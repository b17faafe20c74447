"""Java's properties, as the files of Kafka's clients have them. Pure."""

import re
from typing import Final

from headrace.base.errors import HeadraceError

_ESCAPED: Final = re.compile(r"(?:\\u[0-9a-fA-F]{4})+")
"""Of Java's escapes the only one that is read: others may as well be what librdkafka takes as it stands."""


def parse_properties(text: str) -> dict[str, str]:
    """What they say, by name.

    Raises HeadraceError for a line without `=`, and says nothing of the line: it may be a secret.
    """
    found: dict[str, str] = {}
    for line in text.replace("\r\n", "\n").replace("\\\n", "").splitlines():
        if not line.strip() or line.lstrip().startswith(("#", "!")):
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise HeadraceError("a line of the properties is not NAME=VALUE")
        found[name.strip()] = _ESCAPED.sub(_unescaped, value.strip())
    return found


def property_line(name: str, value: str) -> str:
    """A line as Java's clients read it, and librdkafka's where it is all ASCII: what is not is escaped.

    Raises HeadraceError for a backslash, which only one of them takes for itself, and for what no line holds.
    """
    if not value.isprintable() or "\\" in value or value != value.strip():
        raise HeadraceError(f"{name} cannot stand in a file for all clients: it is a line, without a backslash")
    return f"{name}={''.join(each if each.isascii() else _escaped(each) for each in value)}\n"


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _unescaped(match: re.Match[str]) -> str:
    return bytes.fromhex(match[0].replace("\\u", "")).decode("utf-16-be", "replace")
