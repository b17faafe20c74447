"""A topic in memory, and when it can be forgotten."""

from typing import Any

from headrace.base.ids import Home, Millis, StreamNumber
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.rows import StreamRow, TopicRow
from headrace.node.parts import NodeParts
from headrace.partitions.topic import Topic, rows_by_id, rows_by_name
from headrace.partitions.topic_configs import effective
from kit.three_nodes import held, led_by

STREAM = StreamRow(StreamNumber(3), "/s", StreamPolicy(), Millis(1), 2, 4)


def row(name: str = "t", *, home: Home | None = None, stream: int = 3) -> TopicRow:
    return TopicRow(1, name.encode() * 16, StreamNumber(stream), "/s", name, 2, {}, Millis(1), home)


def topic_in_memory() -> Topic:
    return Topic(row(), effective(StreamPolicy(), {}))


def test_it_is_idle_while_none_of_its_partitions_is_being_loaded() -> None:
    one = topic_in_memory()
    assert one.idle
    one.loading = 1
    assert not one.idle


async def test_it_is_idle_once_none_of_its_partitions_is_used(brokers: list[NodeParts], topic: str) -> None:
    broker = brokers[0]
    (index, *_) = await led_by(broker)
    partition = await held(broker, index)
    (one,) = await broker.topics.resolve([topic])
    assert isinstance(one, Topic)
    assert one.partitions[index] is partition
    assert one.idle
    partition.rolling = True
    assert not one.idle
    partition.rolling = False
    assert one.idle


def test_another_row_of_the_catalog_is_taken_with_its_home() -> None:
    one = topic_in_memory()
    assert one.home is None
    one.take(row(home=Home(4, "north")))
    assert one.home == Home(4, "north")


class Reader:
    """A catalog with the streams 3 and /s, and the topics t and u; the stream of topic v is deleted."""

    def __init__(self) -> None:
        self.looked: list[int] = []
        self.streams = self.topics = self

    def at(self, path: str) -> Any:
        return STREAM if path == "/s" else None

    def by_number(self, number: int) -> Any:
        self.looked.append(number)
        return STREAM if number == 3 else None

    def named(self, path: str, names: list[str]) -> dict[str, Any]:
        return {name: row(name) for name in names if name in "tu"}

    def by_ids(self, topic_ids: list[bytes]) -> dict[bytes, Any]:
        known = {"t": 3, "u": 3, "v": 4}
        return {
            name.encode() * 16: row(name, stream=stream)
            for name, stream in known.items()
            if name.encode() * 16 in topic_ids
        }


def test_topics_are_found_by_name_with_their_streams() -> None:
    reader: Any = Reader()
    found = rows_by_name(reader, {"/s": ["t", "u", "x"], "/none": ["t"]})
    assert [(each.name, stream) for each, stream in found] == [("t", STREAM), ("u", STREAM)]


def test_topics_are_found_by_id_and_each_stream_is_looked_up_once() -> None:
    reader: Any = Reader()
    found = rows_by_id(reader, [b"t" * 16, b"u" * 16, b"v" * 16, b"x" * 16])
    assert [each.name for each, _ in found] == ["t", "u"], "a topic whose stream has gone is none"
    assert reader.looked == [3, 4]
