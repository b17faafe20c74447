"""Chooses which of several links pulls a topic on a node. Pure functions.

The link from the home itself is chosen if there is one, since records arrive later by way of other clusters; otherwise
the first by name, so that all nodes choose alike. If the chosen link's source is not the home, the others deliver what
it has not delivered after `PATIENCE_S`. A link whose source cannot be reached keeps its topics for `TROUBLE_S`; then
another link pulls them, if there is one, until the source can be reached again. So in the steady state a mesh of
clusters carries each record to each of them once.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

TROUBLE_S: Final = 10.0
PATIENCE_S: Final = 2.0


class Candidate(NamedTuple):
    """A link whose patterns match the topic."""

    name: str
    cluster: str
    """The source's cluster id; empty while it is unknown."""
    trouble_since: float | None = None
    """Since when the source cannot be reached, in the loop's seconds; None if it can."""


class Share(NamedTuple):
    """A link's share of the work on a partition. A link that is paused or does not match the topic has none."""

    patience_s: float = 0.0
    """How long it leaves new records to the others, in seconds; 0 for the link that pulls the topic."""
    chosen: bool = True
    """Whether this link is the one that pulls the topic, and skips what its source lacks."""


def choose(candidates: Sequence[Candidate], *, home: str, now: float) -> Candidate | None:
    """The link that pulls a topic whose home is the cluster `home`; None if there are no candidates."""
    if not candidates:
        return None
    well = [each for each in candidates if not is_given_up(each.trouble_since, now)]
    return min(well or candidates, key=lambda each: (each.cluster != home, each.name))


def is_given_up(trouble_since: float | None, now: float) -> bool:
    """Whether a link has been in trouble for so long that another one replaces it."""
    return trouble_since is not None and now - trouble_since >= TROUBLE_S
