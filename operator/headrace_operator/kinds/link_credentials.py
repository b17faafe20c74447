"""The credentials Secret of a ReplicationLink, as client properties. Pure.

A Secret has one entry `client.properties`, as StreamUser creates it, or an entry for each property; with both, an entry
overrides a line. No message quotes a value, or a line whose name does not look like a property: it may be part of a
key.
"""

import base64
import re
from collections.abc import Mapping
from typing import Any, Final

from headrace.base.errors import HeadraceError
from headrace.base.properties import parse_properties
from headrace.security.client_security import security_of

FILE: Final = "client.properties"
OF_A_USER: Final = frozenset(
    {"bootstrap", "user", "password", "user.crt", "user.key", "user.pem", "ca.crt", "java.properties"}
)
"""Entries that StreamUser creates beside the file."""
NOT_SECURITY: Final = frozenset({"bootstrap.servers", "client.id"})
"""Properties of a client's file that a link takes from elsewhere."""
INSIDE: Final = {
    "ssl.ca.location": "ssl.ca.pem",
    "ssl.certificate.location": "ssl.certificate.pem",
    "ssl.key.location": "ssl.key.pem",
}
"""Properties that name files, with the property for the file's content: a file that is an entry of the Secret itself is
replaced by its content.
"""
OPEN: Final = frozenset({"security.protocol", "sasl.mechanism", "sasl.mechanisms", "sasl.username"})
"""Properties whose values may be shown."""
MIN_SECRET: Final = 3
"""Least characters of a value that is masked: a shorter one would be found in any text."""
_NAME: Final = re.compile(r"[a-z]+(\.[a-z0-9]+)+")


def properties_of(secret: Mapping[str, Any]) -> dict[str, str]:
    """Return the checked properties. Raises HeadraceError with what to change."""
    entries = {}
    for name, value in (secret.get("data") or {}).items():
        try:
            entries[str(name)] = base64.b64decode(value or "").decode()
        except ValueError:
            raise HeadraceError(f"its entry {name} is not text") from None
    found = _file_properties(entries.pop(FILE)) if FILE in entries else {}
    for location, pem in INSIDE.items():
        if (held := entries.get(found.get(location, "").rpartition("/")[2])) is not None:
            del found[location]
            found[pem] = held
    made_by_user = bool(found)
    for name, value in entries.items():
        if not (made_by_user and name in OF_A_USER):
            found[name] = value.rstrip("\n")
    found = {name: value for name, value in found.items() if name not in NOT_SECURITY}
    if not found:
        raise HeadraceError(f"it has no client properties: add {FILE}, or an entry for each property")
    for name in found:
        if name.endswith(".location"):
            raise HeadraceError(
                f"{name} would be a file in the storage nodes' pods: give ssl.ca.pem, ssl.certificate.pem or"
                " ssl.key.pem with what is in the file"
            )
    security_of(found)
    return found


def _file_properties(text: str) -> dict[str, str]:
    try:
        found = parse_properties(text)
    except HeadraceError:
        raise HeadraceError(f"its entry {FILE} has a line that is not NAME=VALUE") from None
    for number, name in enumerate(found, 1):
        if not _NAME.fullmatch(name):
            raise HeadraceError(
                f"its entry {FILE} has a line that names no property (it is the {number}. property there); a PEM of"
                " several lines is better an entry of its own, such as ssl.ca.pem"
            )
    return found


def without_secrets(text: str, properties: Mapping[str, str]) -> str:
    """Return `text` with the values of secret properties masked."""
    for name, value in properties.items():
        if name not in OPEN and len(value) >= MIN_SECRET:
            text = text.replace(value, "***")
    return text
