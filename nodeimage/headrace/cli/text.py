"""Handles text of arbitrary bytes: a user's input, and a cluster's data, may be invalid UTF-8, or contain control
characters.

Arguments are decoded as in Python's UTF-8 mode: a byte that is not UTF-8 becomes a lone surrogate (`surrogateescape`),
and is encoded to that very byte again. Pure functions.
"""

import base64
import re
from collections.abc import Mapping
from typing import Any, Final

_SHORT: Final = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}
_ESCAPED_BYTES: Final = range(0xDC80, 0xDD00)
_LONE = re.compile("[\ud800-\udfff]")
_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""Characters that JSON leaves unescaped but that affect a terminal."""


def is_utf8(text: str) -> bool:
    """Whether the text can be written as UTF-8."""
    return text.isascii() or _LONE.search(text) is None


def to_bytes(text: str) -> bytes:
    """The bytes of an argument as they were given."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a UTF-16 pair, which is not from an argument
        return text.encode("utf-8", "surrogatepass")


def printable(text: str, *, keep: str = "") -> str:
    r"""The text with all invisible characters escaped as in Python: `\x1b`, `\n`, `\u202e`.

    A byte that is not UTF-8 is shown as `\xff`. Characters in `keep` stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(each if each in keep or each.isprintable() else _escaped(each) for each in text)


def printable_bytes(content: bytes, *, keep: str = "") -> str:
    """The bytes as text, escaped as `printable` does."""
    return printable(content.decode("utf-8", "surrogateescape"), keep=keep)


def for_json(text: str) -> str:
    """An equivalent of a whole JSON document, without characters that affect a terminal."""
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def exact(result: Any) -> Any:
    """`result` in a form that JSON supports: text that is not UTF-8 is escaped, with its bytes beside it as
    `<name>_base64`."""
    match result:
        case str():
            return result if is_utf8(result) else printable(result)
        case Mapping():
            shown: dict[str, Any] = {}
            for name, value in result.items():
                shown[exact(name)] = exact(value)
                if _holds_bytes(value):
                    shown[f"{exact(name)}_base64"] = _in_base64(value)
            return shown
        case list() | tuple():
            return [exact(each) for each in result]
        case _:
            return result


def _holds_bytes(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(isinstance(each, str) for each in value) and any(map(_holds_bytes, value))
    return isinstance(value, str) and not is_utf8(value)


def _in_base64(value: Any) -> Any:
    if isinstance(value, str):
        return base64.b64encode(to_bytes(value)).decode()
    return [_in_base64(each) for each in value]


def _escaped(character: str) -> str:
    code = ord(character)
    if code in _ESCAPED_BYTES:
        return f"\\x{code - 0xDC00:02x}"
    if character in _SHORT:
        return _SHORT[character]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
