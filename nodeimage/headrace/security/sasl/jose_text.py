"""The text form of tokens and keys (RFC 7515): base64url without padding and JSON objects, each with exactly one
spelling."""

import base64
import json
import re
from typing import Any, Final, NoReturn

_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]*")


def from_base64url(text: str) -> bytes:
    """Decode base64url. Raises ValueError for padding, other letters, and unused bits that are set: no two texts decode
    to the same bytes."""
    if len(text) % 4 == 1 or not _BASE64URL.fullmatch(text):
        raise ValueError("not base64url")
    content = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if to_base64url(content) != text:
        raise ValueError("not base64url")
    return content


def to_base64url(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def json_object(content: bytes) -> dict[str, Any]:
    """The JSON object. Raises ValueError for anything else, and for a duplicate name, NaN or infinity."""
    try:
        found = json.loads(content.decode(), object_pairs_hook=_unique, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _refuse(_constant: str) -> NoReturn:
    raise ValueError("not a number")
