"""A topic in memory, and when it may be forgotten."""

from types import SimpleNamespace
from typing import Any

from headrace.base.ids import Home
from headrace.partitions.topic import Topic, rows_by_id, rows_by_name


def row(name: str = "t", *, home: Home | None = None, stream: int = 3) -> Any:
    return SimpleNamespace(
        topic_id=name.encode() * 16, name=name, stream="/s", stream_number=stream, partitions=2, configs={}, home=home
    )


def topic(**fields: Any) -> Topic:
    policy: Any = None
    return Topic(row(**fields), policy)


def test_it_is_idle_once_none_of_its_partitions_is_used_or_being_loaded() -> None:
    one = topic()
    assert one.idle
    one.loading = 1
    assert not one.idle
    one.loading = 0
    busy: Any = SimpleNamespace(idle=False)
    one.partitions[0] = busy
    assert not one.idle
    busy.idle = True
    assert one.idle


def test_another_row_of_the_catalog_is_taken_with_its_home() -> None:
    one = topic()
    assert one.home is None
    one.take(row(home=Home(4, "north")))
    assert one.home == Home(4, "north")


class Reader:
    """A catalog of streams 3 and /s, with topics t and u; topic v's stream is gone."""

    def __init__(self) -> None:
        self.looked: list[int] = []
        self.streams = self.topics = self

    def at(self, path: str) -> Any:
        return "stream 3" if path == "/s" else None

    def by_number(self, number: int) -> Any:
        self.looked.append(number)
        return "stream 3" if number == 3 else None

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
    assert [(each.name, stream) for each, stream in found] == [("t", "stream 3"), ("u", "stream 3")]


def test_topics_are_found_by_id_and_each_stream_is_looked_up_once() -> None:
    reader: Any = Reader()
    found = rows_by_id(reader, [b"t" * 16, b"u" * 16, b"v" * 16, b"x" * 16])
    assert [each.name for each, _ in found] == ["t", "u"], "a topic whose stream has gone is none"
    assert reader.looked == [3, 4]
