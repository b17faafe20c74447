"""Feature levels: what a version of Headrace can read, and what a cluster may write (docs/upgrades.md).

    level   since   what a cluster may write from this level on
    0       0.1.0   all that commit 523cdbc reads
    1       0.2.0   format 2 of the cluster's record and of node.json, which older versions refuse; the level in the
                    catalog's log (RaiseLevel), and after it deletion in pieces (ForgetDeleted, ExpireSomeOffsets)
                    and stream numbers that are reused; the ids of changes in containers' records
                    (store.lineage); checksums of the catalog's rows, format 4 of its file (tables.row_checksums),
                    and ReadMarks
    2       0.2.0   format 3 of the same two records; users, credentials, access expressions and quotas in the catalog,
                    in tables that a file of level 1 lacks, and that are created, empty, when this version opens such a
                    file

A version reads everything of the levels that it supports, and writes only what the cluster's level allows
(store.features). Code that writes something that a lower level lacks (a frame type, a command, a record, a message, or
a new field of one of these) asks `ClusterView.may` first.
"""

from enum import IntEnum
from typing import Final


class Level(IntEnum):
    """The levels that this version knows."""

    ORIGINAL = 0
    FENCED = 1
    SECURED = 2


OLDEST: Final = min(Level)
NEWEST: Final = max(Level)
"""The newest level that this version supports."""
_FORMATS: Final = {Level.ORIGINAL: 1, Level.FENCED: 2, Level.SECURED: 3}


def format_of(level: int) -> int:
    """The format of the cluster's record and of node.json at a level. Versions that cannot read it are kept out."""
    return max(format for since, format in _FORMATS.items() if since <= level)


def level_of(format: int) -> int:
    """The highest level at which a cluster's record has this format."""
    return max(level for level, of in _FORMATS.items() if of <= format)


FEATURE: Final = "headrace.version"
"""The name of the cluster's level among the features that ApiVersions reports to Kafka clients."""
FORMAT: Final = format_of(NEWEST)
"""The newest format of the cluster's record and of node.json that this version reads."""
