"""Of several links that could pull a topic on a node, which one does: pure.

The home itself if a link leads there, since whatever passes through others comes later; else the first by name, so that
all nodes choose alike. That one may wait for us: what it has not brought for `PATIENCE_S` the others bring. A link
whose source cannot be reached keeps its topics for `TROUBLE_S`; then another takes them, if there is one, and gives
them back when it can be reached again. So in the steady state a mesh of clusters carries each record to each of them
once.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

TROUBLE_S: Final = 10.0
PATIENCE_S: Final = 2.0


class Candidate(NamedTuple):
    """A link whose patterns match the topic."""

    name: str
    cluster: str
    """Its source's; empty while that is not known."""
    trouble_since: float | None = None
    """Since when its source cannot be reached; None: it can."""


class Share(NamedTuple):
    """What a link does of a partition. One that leads nowhere for it, or is paused, has none."""

    patience_s: float = 0.0
    """How long it leaves what is new to others; 0 for the one that pulls it."""
    chosen: bool = True
    """It is the one that pulls the topic, and goes on behind what its source lacks."""


def choose(candidates: Sequence[Candidate], *, home: str, now: float) -> Candidate | None:
    """The link that pulls a topic whose home is the cluster `home`; None without candidates."""
    if not candidates:
        return None
    well = [each for each in candidates if not is_given_up(each.trouble_since, now)]
    return min(well or candidates, key=lambda each: (each.cluster != home, each.name))


def is_given_up(trouble_since: float | None, now: float) -> bool:
    """Whether a link has been in trouble for so long that others pull in its place."""
    return trouble_since is not None and now - trouble_since >= TROUBLE_S
