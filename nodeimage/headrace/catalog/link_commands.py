"""The catalog's commands on links and on the homes of topics (DESIGN section 9). Part of commands.py.

A home is (counter, cluster id), ordered as a tuple. A topic without a stored home is at home in this catalog's cluster
since it was made; which cluster that is the catalog does not know, so commands that need it carry its id.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase

import msgspec

from headrace.base.ids import Millis, Offset
from headrace.catalog.command import CatalogCommand, Item

Start = tuple[int, str, Offset]
"""(counter, cluster, start): from which offset on a partition's records are those of that home."""


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


class PutLink(CatalogCommand, frozen=True):
    """Makes (`create`) or alters the link of that name. Outcome: LinkOutcome.

    A link that has the config already is a success without a change, so a repeat is. Making one whose name another has
    is refused with INVALID_REQUEST, and so is altering one that there is not, or one of another stream.
    """

    name: str
    stream: str
    config: LinkConfig
    now: Millis
    create: bool


class SetLinkState(CatalogCommand, frozen=True):
    """Outcome: LinkOutcome; `state` is RUNNING or PAUSED. INVALID_REQUEST if there is no such link."""

    name: str
    state: str


class SetLinkSource(CatalogCommand, frozen=True):
    """The source has told which cluster it is. Outcome: LinkOutcome.

    Nothing changes where the link knows a cluster already, is another one of that name (`link` is its id), or was given
    other addresses (`source`) meanwhile. INVALID_REQUEST if there is no such link.
    """

    name: str
    link: int
    source: list[str]
    source_cluster: str


class DeleteLink(CatalogCommand, frozen=True):
    """Outcome: LinkOutcome with the link as it was. INVALID_REQUEST if there is none.

    (A repeat's submitter gets what the first copy came to.)
    """

    name: str


class HomeChange(Item, frozen=True):
    """A topic's home becomes (counter, cluster).

    `lists`: per partition the whole history that its records have once it is settled for that home; in a partition that
    the home lacks, it begins at 0, as in one that it makes later. None: the home begins in each partition where its
    records end when it is settled.
    """

    topic_id: bytes
    counter: int
    cluster: str
    lists: dict[int, list[Start]] | None = None


class SetHome(CatalogCommand, frozen=True):
    """Outcome: list[Code]. FENCED_LEADER_EPOCH where the topic has a higher home; NONE and no change where it has this
    one. A topic that was always at home here has the lowest of all homes."""

    items: list[HomeChange]
