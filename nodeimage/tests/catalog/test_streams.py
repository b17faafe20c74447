"""Streams."""

import pytest

from headrace.base.errors import KafkaError
from headrace.catalog.policy import PolicyChanges, StreamPolicy
from headrace.catalog.streams import AlterStream, CreateStream, DeleteStream
from kit.catalog import Tables
from kit.catalog_commands import NOW, create


def test_a_stream_is_made_once_and_altered(tables: Tables) -> None:
    again = tables.apply(CreateStream("/s", StreamPolicy(ttl_ms=5), NOW))
    assert not again.changed
    assert again.stream.policy.ttl_ms == 1000
    altered = tables.apply(AlterStream("/s", PolicyChanges(auto_create=False)))
    assert altered.stream.policy == StreamPolicy(ttl_ms=1000, auto_create=False)
    assert tables.reader.streams.at("/s") == altered.stream
    moved = tables.apply(AlterStream("/s", PolicyChanges(volume="fast")))
    assert (altered.stream.policy.volume, moved.stream.policy.volume) == ("default", "fast")
    made = tables.apply(CreateStream("/fast", StreamPolicy(volume="fast"), NOW))
    assert tables.reader.streams.at("/fast") == made.stream
    with pytest.raises(KafkaError, match="no stream /t"):
        tables.apply(AlterStream("/t", PolicyChanges()))
    with pytest.raises(KafkaError):
        tables.apply(CreateStream("no/path", StreamPolicy(), NOW))


def test_a_stream_with_topics_is_deleted_only_by_force_and_its_number_never_returns(tables: Tables) -> None:
    topic_id = create(tables, "t", partitions=2)
    ids = [row.id for row in tables.reader.chains.chain(1)]
    with pytest.raises(KafkaError, match="holds 1 topics"):
        tables.apply(DeleteStream("/s", NOW))
    tables.apply(DeleteStream("/s", NOW, force=True))
    assert tables.reader.topics.by_id(topic_id) is None
    assert tables.reader.chains.live(ids) == {}
    assert tables.reader.streams.totals() == (0, 0, 0)
    assert tables.apply(CreateStream("/s", StreamPolicy(), NOW)).stream.number == 2
