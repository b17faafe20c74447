"""Commands that create, alter, pause and delete links between clusters (docs/links.md)."""

from typing import NamedTuple

import msgspec

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Millis
from headrace.catalog.command import CatalogCommand
from headrace.catalog.counters import take_numbers
from headrace.catalog.link_config import LinkConfig
from headrace.catalog.rows import PAUSED, RUNNING, LinkRow
from headrace.catalog.selects import encode_link, select_link
from headrace.catalog.streams import require_stream
from headrace.tables.row_checksums import Tables


class LinkOutcome(NamedTuple):
    """The link's row, for a deleted link as it was. `changed` is false if there was nothing to do."""

    link: LinkRow
    changed: bool


class PutLink(CatalogCommand[LinkOutcome], frozen=True):
    """Create (`create`) or alter the link of that name.

    If the link already has the config, the outcome is a success without a change, as for a repeat. Creating a link
    whose name is in use is refused with INVALID_REQUEST, and so is altering a link that does not exist, or one of
    another stream.
    """

    name: str
    stream: str
    config: LinkConfig
    now: Millis
    create: bool

    def apply(self, connection: Tables) -> LinkOutcome:
        stream = require_stream(connection, self.stream)
        present = select_link(connection, self.name)
        if present is None:
            if not self.create:
                raise _not_found(self.name)
            if not self.name:
                raise KafkaError(Code.INVALID_REQUEST, "a link needs a name")
            id_ = take_numbers(connection, "next_link", 1)
            row = LinkRow(id_, self.name, stream.path, self.config, RUNNING, self.now)
            columns = (row.id, row.name, stream.number, encode_link(row.config), row.state, row.created)
            connection.insert("links", [columns])
            return LinkOutcome(row, changed=True)
        same = present.config == self.config
        if present.stream != stream.path or (self.create and not same):
            raise KafkaError(
                Code.INVALID_REQUEST,
                f"there is a link {self.name} already, of stream {present.stream}; alter or delete it"
                if self.create
                else f"link {self.name} is of stream {present.stream}, not of {stream.path}",
            )
        if not same:
            connection.update("links", {"config": "?1"}, "id = ?2", encode_link(self.config), present.id)
        return LinkOutcome(present._replace(config=self.config), changed=not same)


class SetLinkState(CatalogCommand[LinkOutcome], frozen=True):
    """Resume or pause a link: `state` is RUNNING or PAUSED. INVALID_REQUEST if there is no such link."""

    name: str
    state: str

    def apply(self, connection: Tables) -> LinkOutcome:
        present = _require(connection, self.name)
        if self.state not in (RUNNING, PAUSED):
            raise KafkaError(Code.INVALID_REQUEST, f"a link is {RUNNING} or {PAUSED}, never {self.state!r}")
        connection.update("links", {"state": "?1"}, "id = ?2", self.state, present.id)
        return LinkOutcome(present._replace(state=self.state), changed=present.state != self.state)


class SetLinkSource(CatalogCommand[LinkOutcome], frozen=True):
    """Store the cluster id that a link's source has reported.

    Nothing changes if the link has a cluster id already, is another link of that name (`link` is the id of the one
    meant), or was given other addresses (`source`) meanwhile. INVALID_REQUEST if there is no such link.
    """

    name: str
    link: int
    source: list[str]
    source_cluster: str

    def apply(self, connection: Tables) -> LinkOutcome:
        present = _require(connection, self.name)
        config = present.config
        if present.id != self.link or config.source_cluster or config.source != self.source:
            return LinkOutcome(present, changed=False)
        config = msgspec.structs.replace(config, source_cluster=self.source_cluster)
        connection.update("links", {"config": "?1"}, "id = ?2", encode_link(config), present.id)
        return LinkOutcome(present._replace(config=config), changed=True)


class DeleteLink(CatalogCommand[LinkOutcome], frozen=True):
    """Delete a link; the topics that it created stay as they are. The outcome contains the link as it was.

    INVALID_REQUEST if there is none. (The submitter of a repeat gets the outcome of the first copy.)
    """

    name: str

    def apply(self, connection: Tables) -> LinkOutcome:
        present = _require(connection, self.name)
        connection.delete("links", "id = ?1", present.id)
        return LinkOutcome(present, changed=True)


def _require(connection: Tables, name: str) -> LinkRow:
    present = select_link(connection, name)
    if present is None:
        raise _not_found(name)
    return present


def _not_found(name: str) -> KafkaError:
    return KafkaError(Code.INVALID_REQUEST, f"there is no link {name}")
