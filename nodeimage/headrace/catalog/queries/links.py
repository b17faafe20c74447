"""Queries of links between clusters."""

import sqlite3

from headrace.catalog.queries.proofs import Proofs
from headrace.catalog.rows import LinkRow
from headrace.catalog.selects import LINK, link_row, select_link


class LinkQueries:
    """Queries of links on one connection; used by one thread at a time."""

    def __init__(self, connection: sqlite3.Connection, proofs: Proofs) -> None:
        self._connection = connection
        self._proofs = proofs

    def all(self, stream: str | None = None) -> list[LinkRow]:
        """Links in order of name: all of them, or those of the stream at the path `stream`."""
        found = list(map(link_row, self._connection.execute(f"{LINK} ORDER BY l.name")))
        if self._proofs.checks:
            streams = [number for (number,) in self._connection.execute("SELECT stream FROM links")]
            if len(streams) != len(found):  # a link without a stream means damage: a deleted stream leaves no links
                self._proofs.stream_gone(set(streams))
        return found if stream is None else [link for link in found if link.stream == stream]

    def named(self, name: str) -> LinkRow | None:
        """The link of that name; None if there is none."""
        found = select_link(self._connection, name)
        if found is None and self._proofs.checks:
            row = self._connection.execute("SELECT stream FROM links WHERE name = ?", (name,)).fetchone()
            if row is None:
                self._proofs.prove_absent("links", ("name",), [(name,)])
            else:
                self._proofs.stream(row[0])
        return found
