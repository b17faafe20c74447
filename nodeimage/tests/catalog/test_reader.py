"""Queries by example; test_damage runs each of them on damaged rows."""

from headrace.base.ids import (
    ContainerId,
    PartitionletId,
    StreamNumber,
    partitionlet_id,
    serial_of,
    stream_of,
)
from headrace.catalog.policy import StreamPolicy
from headrace.catalog.streams import CreateStream, DeleteStream
from headrace.catalog.topics import CreateTopics, DeleteTopics
from kit.catalog import Tables
from kit.catalog_commands import NOW, chain, create, new_topic, roll


def test_what_is_not_made_yet_is_told_from_what_is_gone(tables: Tables) -> None:
    """A container may hold records of partitionlets, and of streams, that this catalog does not know yet."""
    topic_id = create(tables, "t")
    (first,) = chain(tables, topic_id)
    stream = stream_of(first.id)
    later = partitionlet_id(stream=stream, serial=serial_of(first.id) + 1)
    elsewhere = partitionlet_id(stream=StreamNumber(stream + 1), serial=1)
    ids = [first.id, later, elsewhere]
    assert tables.reader.chains.not_yet_made(ids) == [later, elsewhere]
    assert roll(tables, topic_id, end=5, epochs=[]).id == later
    tables.apply(DeleteTopics([topic_id], NOW))
    assert tables.reader.chains.not_yet_made(ids) == [elsewhere]
    assert tables.reader.chains.live(ids) == {}
    path = tables.reader.streams.page()[0].path
    tables.apply(DeleteStream(path, NOW, force=True))
    assert tables.reader.chains.not_yet_made(ids) == [elsewhere]


def test_pages_and_names_cover_every_topic_once(tables: Tables) -> None:
    tables.apply(CreateStream("/a", StreamPolicy(), NOW))
    items = [new_topic(f"t{index:03}", stream=path) for path in ("/s", "/a") for index in range(25)]
    tables.apply(CreateTopics(items, NOW))
    seen, after = [], (StreamNumber(0), "")
    while page := tables.reader.topics.of_all_streams(after=after, limit=7):
        seen += [topic.full_name for topic in page]
        after = (page[-1].stream_number, page[-1].name)
    assert seen == [f"{path}:t{index:03}" for path in ("/s", "/a") for index in range(25)]
    assert [topic.name for topic in tables.reader.topics.page("/s", after="t003", limit=2)] == ["t004", "t005"]
    assert tables.reader.topics.page("/none") == []
    found = tables.reader.topics.named("/s", [f"t{index:03}" for index in range(0, 60, 5)])
    assert sorted(found) == ["t000", "t005", "t010", "t015", "t020"]
    assert [stream.path for stream in tables.reader.streams.page()] == ["/a", "/s"]
    assert len(tables.reader.topics.by_ids([item.topic_id for item in items])) == 50
    opened = tables.reader.chains.open_in(ContainerId(10), limit=30)
    assert len(opened) == 30
    assert len(tables.reader.chains.open_in(ContainerId(10), after=PartitionletId(opened[-1].id))) == 20
