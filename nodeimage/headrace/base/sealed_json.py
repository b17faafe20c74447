"""JSON objects with a checksum, for files in which damage must be detected.

    {"crc":"<8 hex digits>", ...}        CRC-32C of all bytes after the comma, except blanks at the end

The checksum is an ordinary field, so versions that do not know it ignore it. An object that they write has no checksum,
and is accepted without one.
"""

from typing import Final

from crc32c import crc32c

_BEGIN: Final = b'{"crc":"'
_BEHIND: Final = b'",'
_DIGITS: Final = 8
_HEAD: Final = len(_BEGIN) + _DIGITS + len(_BEHIND)


def seal(json: bytes, *, salt: bytes = b"") -> bytes:
    """An object with its checksum; an empty object, or JSON of another type, unchanged. `salt`: more bytes for the
    checksum, which say what the object belongs to."""
    if not json.startswith(b'{"'):
        return json
    rest = json[1:]
    return b"".join((_BEGIN, b"%08x" % crc32c(rest, crc32c(salt)), _BEHIND, rest))


def unseal(content: bytes, *, salt: bytes = b"") -> bytes:
    """The object without its checksum, if it has one. Raises ValueError if the checksum is wrong."""
    if not content.startswith(_BEGIN):
        return content
    rest = content[_HEAD:].rstrip(b" ")
    if content[:_HEAD] != b"".join((_BEGIN, b"%08x" % crc32c(rest, crc32c(salt)), _BEHIND)):
        raise ValueError("its checksum does not match")
    return b"{" + rest
