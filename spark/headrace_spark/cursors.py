"""Commits offsets right after each batch, for all tools that show a group's lag.

Spark calls a source's `commit` only when it plans the next batch, which on a quiet stream is when the next record
arrives: until then the lag would look too large. A listener in the driver commits as soon as Spark reports the batch.
It finds the cluster in what the source reports, which holds no secrets: if credentials are in options rather than in a
file, only the source commits. A failed commit is logged, and the next commit covers it: the committed offsets of a
Spark query are for others to see, the query itself continues from its checkpoint.
"""

import json
import logging
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from headrace_spark.cluster import Cluster
from headrace_spark.errors import SourceError
from headrace_spark.offsets import commit_cursors
from headrace_spark.options import Connection
from headrace_spark.plan import positions_from_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress

log = logging.getLogger(__name__)
_COMMIT_TIMEOUT_S = 10.0


class CursorListener(StreamingQueryListener):
    """Commits the offsets of all `format("headrace")` sources of a session's queries."""

    @classmethod
    def add_to(cls, spark: "SparkSession") -> None:
        """Add the listener to a session, once."""
        if not getattr(spark, "_headrace_cursors", False):
            spark.streams.addListener(cls())
            spark._headrace_cursors = True  # type: ignore[attr-defined]  # marks the session

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing to do."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Commit the offsets up to which the batch read."""
        for end, reported in _sources(event.progress):
            if "bootstrap" not in reported:
                continue
            connection = Connection(
                bootstrap=tuple((host, port) for host, port in reported["bootstrap"]),
                timeout_s=_COMMIT_TIMEOUT_S,
                properties_file=reported.get("properties_file", ""),
            )
            try:
                with Cluster(connection) as cluster:
                    commit_cursors(cluster, end["group"], positions_from_json(end["positions"]))
            except SourceError as error:
                log.warning(
                    "the cursors of group %s could not be committed; the next batch does it: %s", end["group"], error
                )

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing to do: the last batch's offsets are committed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Nothing to do: every finished batch has been reported."""


def lag(progress: "StreamingQueryProgress") -> int:
    """Return by how many records the query's Headrace sources are behind the cluster after this batch."""
    return sum(int(reported["lag"]) for _, reported in _sources(progress))


def _sources(progress: "StreamingQueryProgress") -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return (end offset, reported latest offset) of each Headrace source."""
    found = []
    for source in progress.sources:
        try:
            end, latest = json.loads(source.endOffset or "null"), json.loads(source.latestOffset or "null")
        except ValueError:
            continue
        if (
            isinstance(latest, dict)
            and isinstance(end, dict)
            and {"group", "positions"} <= end.keys()
            and "lag" in latest
        ):
            found.append((end, latest))
    return found
