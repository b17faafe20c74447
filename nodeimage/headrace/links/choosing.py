"""Of several links that could pull a topic on a node, which one does: pure.

The home itself if a link leads there, since whatever passes through others comes later; else the one that is least
behind, and of equals the first by name, so that all nodes choose alike. A link whose source cannot be reached keeps its
topics for `TROUBLE_S`; then another takes them, if there is one, and gives them back when it can be reached again. So
in the steady state a mesh of clusters carries each record to each of them once.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

TROUBLE_S: Final = 10.0


class Candidate(NamedTuple):
    """A link whose patterns match the topic."""

    name: str
    cluster: str
    """Its source's; empty while that is not known."""
    trouble_since: float | None = None
    """Since when its source cannot be reached; None: it can."""
    behind: int = 0
    """Records of the topic that another source has and this one has not, as far as is known."""


def choose(candidates: Sequence[Candidate], *, home: str, now: float) -> str | None:
    """The name of the link that pulls a topic whose home is the cluster `home`; None without candidates."""
    if not candidates:
        return None
    well = [each for each in candidates if not is_given_up(each.trouble_since, now)]
    chosen = min(well or candidates, key=lambda each: (each.cluster != home, each.behind, each.name))
    return chosen.name


def is_given_up(trouble_since: float | None, now: float) -> bool:
    """Whether a link has been in trouble for so long that others pull in its place."""
    return trouble_since is not None and now - trouble_since >= TROUBLE_S
