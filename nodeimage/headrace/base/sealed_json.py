"""JSON objects in files that have a checksum: what is read is what was written, or it is known not to be.

    {"crc":"<8 hex digits>", ...}        CRC-32C of all behind the comma, but for blanks at the end

The checksum is a field like any other, so versions that do not know it pass it over, and an object that they write has
none, and is taken as it is.
"""

from typing import Final

from crc32c import crc32c

_BEGIN: Final = b'{"crc":"'
_BEHIND: Final = b'",'
_DIGITS: Final = 8
_HEAD: Final = len(_BEGIN) + _DIGITS + len(_BEHIND)


def seal(json: bytes, *, salt: bytes = b"") -> bytes:
    """An object with its checksum; what is no object, or is an empty one, as it is. `salt`: what it belongs to."""
    if not json.startswith(b'{"'):
        return json
    rest = json[1:]
    return b"".join((_BEGIN, b"%08x" % crc32c(rest, crc32c(salt)), _BEHIND, rest))


def unseal(content: bytes, *, salt: bytes = b"") -> bytes:
    """The object without its checksum, if it has one. Raises ValueError where that does not fit."""
    if not content.startswith(_BEGIN):
        return content
    rest = content[_HEAD:].rstrip(b" ")
    if content[:_HEAD] != b"".join((_BEGIN, b"%08x" % crc32c(rest, crc32c(salt)), _BEHIND)):
        raise ValueError("its checksum does not fit")
    return b"{" + rest
