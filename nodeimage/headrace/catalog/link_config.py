"""What a link between clusters does, and which topics it copies (DESIGN section 9)."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec


class LinkConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a link does. It pulls into the stream that it stands in."""

    source: list[str]
    """host:port of the source's nodes, any of which tells the others."""
    source_stream: str
    topics: list[str] = msgspec.field(default_factory=lambda: ["*"])
    """Patterns of names (fnmatch); a topic that any of them matches is copied."""
    direction: str = "pull"
    """"pull", or "both": the source is told to make a link of its own that pulls from here."""
    forward_writes: bool = False
    throttle: int = 0
    """Bytes a second per node; 0 = no limit."""
    source_cluster: str = ""
    """The source's cluster id, once it has told it; a source that tells another is refused."""
    bootstrap: list[str] = msgspec.field(default_factory=list)
    """This cluster's addresses as the source reaches them, for "both"."""
    credentials: bytes = b""
    """Client properties, sealed; empty for none."""


def matches(patterns: Sequence[str], name: str) -> bool:
    """Whether a link with these patterns copies the topic of that name."""
    return any(pattern == "*" or fnmatchcase(name, pattern) for pattern in patterns)
