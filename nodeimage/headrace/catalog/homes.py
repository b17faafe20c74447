"""The homes of topics, raised by commands, and the home that each partition is settled for (docs/links.md).

A home is (counter, cluster id), ordered as a tuple. A topic without a stored home has been at home in this catalog's
cluster since its creation; the catalog does not know its cluster's id, so commands that need the id contain it.

A partition's history lists the offset at which each home with a counter above 0 begins in it, in rising order of homes,
and so of offsets; records before the first of them are the origin's. A partition is settled for a home once it was
rolled for it, or if it was created under it; a partition without a row is settled for its topic's first home. Functions
are called inside a transaction.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Home, Offset
from headrace.catalog.command import CatalogCommand, Item
from headrace.catalog.rows import HomeStart, TopicRow
from headrace.catalog.selects import select_topics_by_id
from headrace.tables.row_checksums import Tables

Start = tuple[int, str, Offset]
"""(counter, cluster, start): a home, and the offset from which on a partition's records are those of that home."""
_lists = msgspec.msgpack.Decoder(dict[int, list[HomeStart]])


class HomeChange(Item, frozen=True):
    """Change a topic's home to (counter, cluster).

    `lists`: per partition its whole history once it is settled for that home; in a partition that `lists` lacks, the
    home begins at 0, as in one that is created later. None: the home begins in each partition at the end of its records
    at the time of settling.
    """

    topic_id: bytes
    counter: int
    cluster: str
    lists: dict[int, list[Start]] | None = None


class SetHome(CatalogCommand[list[Code]], frozen=True):
    """Raise the homes of topics. One code per item.

    FENCED_LEADER_EPOCH if the topic has a higher home; NONE without a change if it has this one. A topic that was
    always at home here has the lowest of all homes.
    """

    items: list[HomeChange]

    def apply(self, connection: Tables) -> list[Code]:
        codes = []
        for item in self.items:
            topic = select_topics_by_id(connection, [item.topic_id]).get(item.topic_id)  # a topic may be listed twice
            codes.append(_change_home(connection, topic, item))
        return codes


def settle_new(
    connection: Tables,
    topic: TopicRow,
    partitions: range,
    histories: Sequence[tuple[int, int, str, Offset]] | None,
) -> None:
    """Settle new partitions for their topic's home, with these histories; None: they begin with that home."""
    home = topic.home
    if home is None or home.counter == 0:
        if histories:
            raise KafkaError(Code.INVALID_REQUEST, f"{topic.full_name} was never moved, and has no histories")
        return
    if histories is None:
        histories = [(partition, *home, Offset(0)) for partition in partitions]
    if any(partition not in partitions or counter <= 0 for partition, counter, _, _ in histories):
        raise KafkaError(
            Code.INVALID_REQUEST, f"a history of {topic.full_name} is of no new partition, or of counter 0"
        )
    _put_starts(connection, topic.number, histories)
    connection.insert("settled_homes", [(topic.number, partition, *home) for partition in partitions])


def decode_lists(lists: bytes) -> dict[int, list[HomeStart]]:
    """Decode the `lists` column of pending_homes: the histories by partition."""
    return _lists.decode(lists)


def history_in(lists: Mapping[int, Sequence[HomeStart]], partition: int, home: Home) -> Sequence[HomeStart]:
    """A partition's history under `home`, given the home's `lists`; a partition that they lack begins with `home`."""
    found = lists.get(partition)
    return [HomeStart(*home, Offset(0))] if found is None else found


def settle(connection: Tables, topic: TopicRow, partition: int, home: Home, first: Offset) -> HomeStart:
    """Settle a partition that was rolled for `home` and continues at `first`; returns the home that it is settled for,
    and where that begins in it.

    A home lower than the topic's present one has no records here, and does not enter the history.
    """
    settled = connection.execute(
        "SELECT counter, cluster FROM settled_homes WHERE topic = ? AND partition = ?", (topic.number, partition)
    ).fetchone()
    if settled is not None and Home(*settled) > home:
        return _start_of(connection, topic.number, partition, Home(*settled), first)
    connection.insert("settled_homes", [(topic.number, partition, *home)], upsert=True)
    if home == topic.home and (settled is None or Home(*settled) != home):
        _write_history(connection, topic.number, partition, home, first)
    _drop_pending_if_over(connection, topic)
    return _start_of(connection, topic.number, partition, home, first)


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


def put_pending(connection: Tables, topic: int, lists: Mapping[int, Sequence[Start]] | None) -> None:
    """Store the histories that partitions get when they are settled for their topic's present home."""
    connection.delete("pending_homes", "topic = ?1", topic)
    if lists is not None:
        connection.insert("pending_homes", [(topic, msgspec.msgpack.encode(lists))])


def _write_history(connection: Tables, topic: int, partition: int, home: Home, first: Offset) -> None:
    pending = connection.execute("SELECT lists FROM pending_homes WHERE topic = ?", (topic,)).fetchone()
    of_partition = "topic = ?1 AND partition = ?2"
    if pending is not None:
        connection.delete("home_starts", of_partition, topic, partition)
        starts: Iterable[Start] = history_in(decode_lists(pending[0]), partition, home)
    else:
        # Earlier homes of the topic whose records did not arrive here are no part of this history.
        connection.delete("home_starts", f'{of_partition} AND "offset" > ?3', topic, partition, first)
        starts = [(*home, first)] if home.counter else ()
    _put_starts(connection, topic, [(partition, *start) for start in starts])


def _drop_pending_if_over(connection: Tables, topic: TopicRow) -> None:
    if (
        topic.home is None
        or not connection.execute("SELECT 1 FROM pending_homes WHERE topic = ?", (topic.number,)).fetchone()
    ):
        return
    (settled,) = connection.execute(
        "SELECT count(*) FROM settled_homes WHERE topic = ? AND counter = ? AND cluster = ?",
        (topic.number, *topic.home),
    ).fetchone()
    if settled == topic.partitions:
        connection.delete("pending_homes", "topic = ?1", topic.number)


def _start_of(connection: Tables, topic: int, partition: int, home: Home, first: Offset) -> HomeStart:
    found = connection.execute(
        'SELECT "offset" FROM home_starts WHERE topic = ? AND partition = ? AND counter = ? AND cluster = ?',
        (topic, partition, *home),
    ).fetchone()
    start = found[0] if found is not None else first if home.counter else 0
    return HomeStart(*home, Offset(start))


def _put_starts(connection: Tables, topic: int, starts: Iterable[tuple[int, int, str, Offset]]) -> None:
    connection.insert("home_starts", [(topic, *start) for start in starts], upsert=True)
