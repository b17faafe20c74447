"""The SELECT statements that both commands and queries use, and the conversion of SQL rows to the catalog's rows.

Lists of any length are passed as one JSON parameter (json_each), so that a statement is compiled once and a call for
10,000 topics is one statement.
"""

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from headrace.base.ids import ContainerId, Home, Millis, StreamNumber
from headrace.catalog.link_config import LinkConfig
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.rows import OPEN, GroupRow, LinkRow, PartitionletRow, StreamRow, TopicRow, UserRow
from headrace.tables.sqlite_errors import TablesDamaged

STREAM = "SELECT number, path, policy, created, topics, partitions FROM streams"
TOPIC = (
    "SELECT t.number, t.topic_id, s.number, s.path, t.name, t.partitions, t.configs, t.created, "
    "t.home_counter, t.home_cluster, t.home_origin "
    "FROM topics t JOIN streams s ON s.number = t.stream"
)
_PARTITIONLET_COLUMNS = (
    'p.id, p.topic, p.partition, p.container, p.first, p."end", p.leader_epoch, p.container_epoch, p.state, p.epochs, '
    "p.cut"
)
PARTITIONLET = f"SELECT {_PARTITIONLET_COLUMNS} FROM partitionlets p"
GROUP = "SELECT name, generation, protocol_type, protocol, leader, member_ids, members, state, changed FROM groups"
LINK = "SELECT l.id, l.name, s.path, l.config, l.state, l.created FROM links l JOIN streams s ON s.number = l.stream"
USER = "SELECT name, groups, created FROM users"
TOPIC_IDS_AT_ONCE = 500

_NO_CONFIGS: Mapping[str, str] = MappingProxyType({})
_policies = msgspec.json.Decoder(StreamPolicy)
_link_configs = msgspec.msgpack.Decoder(LinkConfig)
_configs = msgspec.json.Decoder(dict[str, str])
_epochs = msgspec.msgpack.Decoder(tuple[tuple[int, int], ...])
_strings = msgspec.msgpack.Decoder(tuple[str, ...])


def encode_policy(policy: StreamPolicy) -> bytes:
    """Encode a policy as JSON, for the `policy` column."""
    return msgspec.json.encode(policy)


def encode_configs(configs: Mapping[str, str]) -> bytes | None:
    """Encode configs as JSON in order of name, for the `configs` column; None (NULL) if there are none."""
    return msgspec.json.encode(dict(configs), order="deterministic") if configs else None


def encode_link(config: LinkConfig) -> bytes:
    """Encode a link's config, for the `config` column."""
    return msgspec.msgpack.encode(config)


def link_row(row: tuple[Any, ...]) -> LinkRow:
    """The link in a result row of LINK."""
    id_, name, stream, config, state, created = row
    return LinkRow(id_, name, stream, _link_configs.decode(config), state, created)


def select_link(connection: sqlite3.Connection, name: str) -> LinkRow | None:
    """The link of that name; None if there is none."""
    row = connection.execute(f"{LINK} WHERE l.name = ?", (name,)).fetchone()
    return None if row is None else link_row(row)


def stream_row(row: tuple[Any, ...]) -> StreamRow:
    """The stream in a result row of STREAM."""
    number, path, policy, created, topics, partitions = row
    return StreamRow(number, path, _policies.decode(policy), created, topics, partitions)


def topic_row(row: tuple[Any, ...]) -> TopicRow:
    """The topic in a result row of TOPIC."""
    number, topic_id, stream, path, name, partitions, configs, created, counter, cluster, origin = row
    held = _NO_CONFIGS if configs is None else _configs.decode(configs)
    if counter is None:
        return TopicRow(number, topic_id, stream, path, name, partitions, held, created)
    home = Home(counter, cluster)
    return TopicRow(number, topic_id, stream, path, name, partitions, held, created, home, origin or "")


def partitionlet_row(row: tuple[Any, ...]) -> PartitionletRow:
    """The partitionlet in a result row of PARTITIONLET."""
    epochs = () if row[9] is None else _epochs.decode(row[9])
    return PartitionletRow._make((*row[:9], epochs, bool(row[10])))


def group_row(row: tuple[Any, ...]) -> GroupRow:
    """The group in a result row of GROUP."""
    name, generation, protocol_type, protocol, leader, member_ids, members, state, changed = row
    return GroupRow(
        name,
        generation,
        protocol_type,
        protocol,
        leader,
        _strings.decode(member_ids),
        members,
        state,
        Millis(changed),
    )


def user_row(row: tuple[Any, ...]) -> UserRow:
    """The user in a result row of USER."""
    name, groups, created = row
    return UserRow(name, _strings.decode(groups), created)


def select_user(connection: sqlite3.Connection, name: str) -> UserRow | None:
    """The user of that name; None if there is none."""
    row = connection.execute(f"{USER} WHERE name = ?", (name,)).fetchone()
    return None if row is None else user_row(row)


def select_stream(connection: sqlite3.Connection, path: str) -> StreamRow | None:
    """The stream at `path`; None if there is none."""
    row = connection.execute(f"{STREAM} WHERE path = ?", (path,)).fetchone()
    return None if row is None else stream_row(row)


def select_topics_by_id(connection: sqlite3.Connection, topic_ids: Collection[bytes]) -> dict[bytes, TopicRow]:
    """The existing topics with these ids, by id."""
    found: dict[bytes, TopicRow] = {}
    wanted = list(topic_ids)
    for start in range(0, len(wanted), TOPIC_IDS_AT_ONCE):
        some = wanted[start : start + TOPIC_IDS_AT_ONCE]
        marks = ",".join("?" * len(some))
        for row in connection.execute(f"{TOPIC} WHERE t.topic_id IN ({marks})", some):
            found[row[1]] = topic_row(row)
    return found


def select_topics_by_name(
    connection: sqlite3.Connection, stream: StreamNumber, names: Iterable[str]
) -> dict[str, TopicRow]:
    """The existing topics of a stream with these names, by name. Raises TablesDamaged."""
    wanted = set(names)
    rows = connection.execute(
        f"{TOPIC} WHERE t.stream = ? AND t.name IN (SELECT value FROM json_each(?))", (stream, json_list(wanted))
    )
    found = {row[4]: topic_row(row) for row in rows}
    if not found.keys() <= wanted:
        raise TablesDamaged(f"topics: those of stream {stream} are missing or in the wrong place")
    return found


def select_open(connection: sqlite3.Connection, topics: Iterable[int]) -> Iterator[PartitionletRow]:
    """The open partitionlets of the topics with these numbers, in order of (topic, partition)."""
    rows = connection.execute(
        f"SELECT {_PARTITIONLET_COLUMNS} FROM json_each(?) j CROSS JOIN partitionlets p "
        "ON p.topic = j.value AND p.state = ? ORDER BY p.topic, p.partition",
        (json_list(sorted(set(topics))), OPEN),
    )
    return map(partitionlet_row, rows)


def select_retired(connection: sqlite3.Connection, containers: Iterable[ContainerId]) -> set[ContainerId]:
    """Those of these containers that take no new partitionlets any more."""
    rows = connection.execute(
        "SELECT container FROM retired WHERE container IN (SELECT value FROM json_each(?))",
        (json_list(sorted(set(containers))),),
    )
    return {container for (container,) in rows}


def taken_out(container: ContainerId) -> str:
    """The message of the error for a placement in a retired container."""
    return f"container {container} no longer accepts new partitions; try again"


def json_list(values: Iterable[object]) -> str:
    """Encode a list as a parameter for json_each."""
    return json.dumps(list(values))


def select_last_topic(connection: sqlite3.Connection, stream: StreamNumber, name: str, where: str) -> str | None:
    """The name of a stream's last topic up to `name`; None if there is none. `where`: a further condition, followed by
    AND."""
    row = connection.execute(
        f"SELECT name FROM topics WHERE {where}stream = ? AND name <= ? ORDER BY name DESC LIMIT 1", (stream, name)
    ).fetchone()
    return None if row is None else row[0]


def select_going(connection: sqlite3.Connection) -> set[int]:
    """The numbers of deleted streams whose rows are not all deleted yet. Reads, and thereby checks, all of these few
    rows."""
    return {number for (number,) in connection.execute("SELECT number FROM going")}
