"""The configuration of a link between clusters, and the topics that it copies (docs/links.md)."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec


class LinkConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """The configuration of a link, which pulls into the stream that it belongs to."""

    source: list[str]
    """host:port of nodes of the source; any one of them is enough to find the others."""
    source_stream: str
    topics: list[str] = msgspec.field(default_factory=lambda: ["*"])
    """Patterns of topic names (fnmatch); the link copies topics that match any of them."""
    direction: str = "pull"
    """"pull", or "both": the source is requested to create a link of its own that pulls from here."""
    forward_writes: bool = False
    throttle: int = 0
    """Limit in bytes per second and node; 0 = no limit."""
    source_cluster: str = ""
    """The source's cluster id, once it is known; a source with another id is refused."""
    bootstrap: list[str] = msgspec.field(default_factory=list)
    """This cluster's addresses as the source reaches them, for "both"."""
    credentials: bytes = b""
    """Encrypted client properties; empty for none."""


def matches(patterns: Sequence[str], name: str) -> bool:
    """Whether a link with these patterns copies the topic of that name."""
    return any(pattern == "*" or fnmatchcase(name, pattern) for pattern in patterns)
