"""The topics in a consumer's subscription: the `metadata` of a protocol of type `consumer`.

    Subscription = version int16, topics [string], user_data bytes, … (more in later versions)

Only the part that all versions begin with is read. The bytes are the client's and may contain anything.
"""

import contextlib
import struct
from collections.abc import Iterable

from headrace.base.errors import KafkaError
from headrace.catalog.names import is_bare, split

PROTOCOL_TYPE = "consumer"

_VERSION_AND_COUNT = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def subscribed_topics(metadata: bytes) -> set[str] | None:
    """The names of the topics, or None if the bytes are not a subscription."""
    if len(metadata) < _VERSION_AND_COUNT.size:
        return None
    _, count = _VERSION_AND_COUNT.unpack_from(metadata)
    at = _VERSION_AND_COUNT.size
    if not 0 <= count <= (len(metadata) - at) // _LENGTH.size:
        return None
    topics = set()
    for _ in range(count):
        if at + _LENGTH.size > len(metadata):
            return None
        (length,) = _LENGTH.unpack_from(metadata, at)
        at += _LENGTH.size
        if not 0 <= length <= len(metadata) - at:
            return None
        try:
            topics.add(metadata[at : at + length].decode())
        except UnicodeDecodeError:
            return None
        at += length
    return topics


def may_name_bare(metadata: bytes) -> bool:
    """Whether a topic is named without its stream, or may be."""
    topics = subscribed_topics(metadata)
    return topics is None or any(map(is_bare, topics))


def full_names(names: Iterable[str], default_stream: str) -> set[str]:
    """The full names of these topics, leaving out names that no topic can have."""
    found = set()
    for name in names:
        with contextlib.suppress(KafkaError):
            found.add(split(name, default_stream).full)
    return found
