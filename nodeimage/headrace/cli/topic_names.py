"""Topic names on the command line: STREAM:TOPIC[/PARTITION]. Pure; the cluster checks their characters."""

import hashlib
import re
from typing import Final

from headrace.base.errors import HeadraceError
from headrace.cli.text import is_utf8, printable, to_bytes

MAX_LENGTH: Final = 249
"""Longest full name of a topic."""
MARK_DIGITS: Final = 12

_TOPIC = re.compile(r"[A-Za-z0-9._-]+")


def split_partition(name: str) -> tuple[str, int | None]:
    """Split `/a/b:topic/3` into (`/a/b:topic`, 3); the second is None without a partition. Topic names contain no
    slash."""
    stream, colon, topic = name.rpartition(":")
    if not colon and name.startswith("/"):
        raise HeadraceError(f"{name!r} names a stream: write STREAM:TOPIC")
    bare, slash, partition = topic.partition("/")
    if slash and not re.fullmatch(r"0*[0-9]{1,10}", partition):
        raise HeadraceError(f"{partition!r} in {name!r} is not a partition number")
    if not bare:
        raise HeadraceError(f"{name!r} names no topic: write STREAM:TOPIC")
    return f"{stream}{colon}{bare}", int(partition) if slash else None


def in_stream(stream: str, device: str) -> str:
    """The topic of `stream` for a device with any name.

    An invalid topic name becomes its valid characters and a hash of the whole name, so that different devices
    have different topics, and a device always has the same one: `a b` is `a-b-c8687a08aa5d` (not `a-b`, which is
    another device's).
    """
    longest = MAX_LENGTH - len(stream) - 1
    if _TOPIC.fullmatch(device) and ".." not in device and device != "." and len(device) <= longest:
        return f"{stream}:{device}"
    mark = hashlib.sha256(device.encode("utf-8", "surrogatepass")).hexdigest()[:MARK_DIGITS]
    left = re.sub(r"\.{2,}", ".", re.sub(r"[^A-Za-z0-9._-]+", "-", device)).strip(".-")
    left = left[: max(0, longest - len(mark) - 1)].rstrip(".-")
    return f"{stream}:{left}-{mark}" if left else f"{stream}:{mark}"


def parse_settings(pairs: list[str]) -> dict[str, str]:
    """`NAME=VALUE` options as a mapping. Raises HeadraceError for an option without `=`."""
    settings: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise HeadraceError(f"{pair!r} is not NAME=VALUE")
        settings[name.strip()] = value.strip()
    return settings


def parse_headers(pairs: list[str]) -> list[tuple[str, bytes]]:
    """`NAME=VALUE` options as a record's headers, in their order: names may repeat, spaces stay, and a value may be any
    bytes. Raises HeadraceError for an option without `=`, or with a name that is not UTF-8."""
    headers = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise HeadraceError(f"{pair!r} is not NAME=VALUE")
        if not is_utf8(name):
            raise HeadraceError(f"--header: the name '{printable(name)}' is not UTF-8")
        headers.append((name, to_bytes(value)))
    return headers
