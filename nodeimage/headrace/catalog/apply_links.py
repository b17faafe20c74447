"""Applies the commands on links and on homes of topics. Called inside a transaction.

What a roll does for a home is in apply_chains.py and homes.py.
"""

import msgspec

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Home
from headrace.catalog.apply_topics import require_stream, take_numbers
from headrace.catalog.homes import put_pending
from headrace.catalog.link_commands import DeleteLink, HomeChange, PutLink, SetHome, SetLinkSource, SetLinkState
from headrace.catalog.rows import PAUSED, RUNNING, LinkOutcome, LinkRow, TopicRow
from headrace.catalog.selects import encode_link, select_link, select_topics_by_id
from headrace.tables.row_checksums import Tables


def put_link(connection: Tables, command: PutLink) -> LinkOutcome:
    """Make a link, or give it another config."""
    stream = require_stream(connection, command.stream)
    present = select_link(connection, command.name)
    if present is None:
        if not command.create:
            raise _none(command.name)
        if not command.name:
            raise KafkaError(Code.INVALID_REQUEST, "a link has a name")
        id_ = take_numbers(connection, "next_link", 1)
        row = LinkRow(id_, command.name, stream.path, command.config, RUNNING, command.now)
        columns = (row.id, row.name, stream.number, encode_link(row.config), row.state, row.created)
        connection.insert("links", [columns])
        return LinkOutcome(row, changed=True)
    same = present.config == command.config
    if present.stream != stream.path or (command.create and not same):
        raise KafkaError(
            Code.INVALID_REQUEST,
            f"there is a link {command.name} already, of stream {present.stream}; alter or delete it",
        )
    if not same:
        connection.update("links", {"config": "?1"}, "id = ?2", encode_link(command.config), present.id)
    return LinkOutcome(present._replace(config=command.config), changed=not same)


def set_link_state(connection: Tables, command: SetLinkState) -> LinkOutcome:
    """Let a link run, or pause."""
    present = _require(connection, command.name)
    if command.state not in (RUNNING, PAUSED):
        raise KafkaError(Code.INVALID_REQUEST, f"a link is {RUNNING} or {PAUSED}, never {command.state!r}")
    connection.update("links", {"state": "?1"}, "id = ?2", command.state, present.id)
    return LinkOutcome(present._replace(state=command.state), changed=present.state != command.state)


def set_link_source(connection: Tables, command: SetLinkSource) -> LinkOutcome:
    """Keep which cluster a link's source is."""
    present = _require(connection, command.name)
    config = present.config
    if present.id != command.link or config.source_cluster or config.source != command.source:
        return LinkOutcome(present, changed=False)
    config = msgspec.structs.replace(config, source_cluster=command.source_cluster)
    connection.update("links", {"config": "?1"}, "id = ?2", encode_link(config), present.id)
    return LinkOutcome(present._replace(config=config), changed=True)


def delete_link(connection: Tables, command: DeleteLink) -> LinkOutcome:
    """Forget a link; the topics that it made stay what they are."""
    present = _require(connection, command.name)
    connection.delete("links", "id = ?1", present.id)
    return LinkOutcome(present, changed=True)


def set_home(connection: Tables, command: SetHome) -> list[Code]:
    """Raise the homes of topics."""
    codes = []
    for item in command.items:
        topic = select_topics_by_id(connection, [item.topic_id]).get(item.topic_id)  # anew: it may come twice
        codes.append(_change_home(connection, topic, item))
    return codes


def _change_home(connection: Tables, topic: TopicRow | None, item: HomeChange) -> Code:
    if topic is None:
        return Code.UNKNOWN_TOPIC_ID
    home = Home(item.counter, item.cluster)
    if topic.home == home:
        return Code.NONE
    if not item.cluster or home.counter <= 0 or (topic.home is not None and home < topic.home):
        return Code.FENCED_LEADER_EPOCH
    if item.lists is not None and any(start[0] <= 0 for starts in item.lists.values() for start in starts):
        return Code.INVALID_REQUEST
    moved = {"home_counter": "?1", "home_cluster": "?2", "home_origin": "?3"}
    connection.update("topics", moved, "number = ?4", *home, topic.origin, topic.number)
    put_pending(connection, topic.number, item.lists)
    return Code.NONE


def _require(connection: Tables, name: str) -> LinkRow:
    present = select_link(connection, name)
    if present is None:
        raise _none(name)
    return present


def _none(name: str) -> KafkaError:
    return KafkaError(Code.INVALID_REQUEST, f"there is no link {name}")
