"""Continuation of the catalog after commands were lost."""

from headrace.base.errors import Code
from headrace.catalog.chains import SKIPPED_BITS
from headrace.catalog.command import CatalogCommand
from headrace.catalog.counters import counter, needed_counter, raise_counter
from headrace.catalog.deletions import free_streams, in_pieces
from headrace.catalog.streams import MAX_STREAM_NUMBER
from headrace.tables.row_checksums import Tables

SKIPPED_STREAMS = 1 << 16
SKIPPED_TOPICS = 1 << 20


class SkipNumbers(CatalogCommand[list[Code]], frozen=True):
    """Skip the numbers that lost commands may have assigned (invariant 15), after the catalog was recovered for the
    `recovered`-th time. Has an effect once for each `recovered`."""

    recovered: int

    def apply(self, connection: Tables) -> list[Code]:
        known = counter(connection, "recovered")
        if known is None or known < self.recovered:
            connection.put_counter("recovered", self.recovered)
            reuses = in_pieces(connection)
            skip = f"((next_serial >> {SKIPPED_BITS}) + 1) << {SKIPPED_BITS}"
            for table in ("streams", "going", "free_streams") if reuses else ("streams",):
                connection.update(table, {"next_serial": skip}, "true")
            if reuses:
                _skip_streams(connection)
            else:
                raise_counter(connection, "next_stream", SKIPPED_STREAMS)
            raise_counter(connection, "next_topic", SKIPPED_TOPICS)
        return [Code.NONE]


def _skip_streams(connection: Tables) -> None:
    """Skip the next stream numbers, which lost streams may have had. They become free numbers like those of deleted
    streams, to be used with serials above those of the lost streams, like all streams created from now on."""
    first = needed_counter(connection, "next_stream")
    serial = counter(connection, "first_serial") or 1
    serial = ((serial >> SKIPPED_BITS) + 1) << SKIPPED_BITS
    connection.put_counter("first_serial", serial)
    count = min(SKIPPED_STREAMS, MAX_STREAM_NUMBER + 1 - first)
    if count > 0:
        raise_counter(connection, "next_stream", count)
        free_streams(connection, first, count, serial)
