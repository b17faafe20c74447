"""A Headrace cluster as a source, asked over its own port."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from headrace.base.addresses import parse_addresses
from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Home, LeaderEpoch, Offset
from headrace.kafka_client.client import Client
from headrace.kafka_client.connection import Limits
from headrace.kafka_client.errors import SourceUnreachable
from headrace.links.source.headrace_source import HeadraceSource
from headrace.links.source.source import (
    NO_EPOCH,
    Announcement,
    CommittedOffsetKey,
    FeedPlace,
    HomeStart,
    Source,
    TopicPartition,
    Wanted,
)
from headrace.security.client_security import Security
from headrace.wire.batch import iter_batches, iter_records
from kit.one_node import OneNode

PATIENT = Limits(connect_s=60.0, silence_s=60.0)
"""Long limits: a node imports schemas before its first answer, which takes long on a busy machine."""


@pytest.fixture
async def source(south: OneNode) -> AsyncIterator[HeadraceSource]:
    """The stream /s of the node, as a source."""
    one = HeadraceSource(Client(parse_addresses([south.bootstrap]), security=Security(), limits=PATIENT), "/s")
    protocol: Source = one  # the tests use only the protocol's methods
    assert protocol.name == f"{south.bootstrap}/s"
    yield one
    await one.close()


async def test_hello_tells_who_is_there_and_whether_the_stream_is(south: OneNode, source: HeadraceSource) -> None:
    said = await source.hello()
    assert (said.cluster_id, said.problem) == (south.cluster_id, None)
    assert said.policy
    assert [(each.node_id, each.port) for each in said.nodes] == [(south.parts.node.node_id, south.parts.node.port)]
    other = HeadraceSource(Client(parse_addresses([south.bootstrap]), security=Security(), limits=PATIENT), "/gone")
    assert (await other.hello()).problem == "the source has no stream /gone"
    await other.close()


async def test_topics_come_by_pages_and_by_id(south: OneNode, source: HeadraceSource) -> None:
    for name in ("a", "b", "c"):
        await south.topic(name, create=True)
    page = await source.topics(after=None, limit=2)
    assert [topic.name for topic in page.topics] == ["a", "b"]
    rest = await source.topics(after=page.after, limit=2)
    assert [topic.name for topic in rest.topics] == ["c"]
    assert rest.after is None
    a = page.topics[0]
    assert (a.home, a.origin) == (Home(0, south.cluster_id), south.cluster_id)
    assert list(a.leaders) == [south.parts.node.node_id] * a.partitions
    assert await source.topics_by_id([a.topic_id, bytes(16)]) == [a]


async def test_what_is_appended_is_told_met_and_fetched_as_it_is(south: OneNode, source: HeadraceSource) -> None:
    await south.topic("a", create=True)
    node = south.parts.node.node_id
    begun = await source.changes(node, None, topics=True, committed_offsets=True, wait_ms=0, limit=100)
    waiting = asyncio.ensure_future(
        source.changes(node, begun.place, topics=True, committed_offsets=True, wait_ms=5000, limit=100)
    )
    await south.append("a", b"one", b"two")
    row = await south.row("a")
    assert row is not None
    at = TopicPartition(row.topic_id, 0)
    said = await waiting
    while (at, 2) not in said.partitions:
        said = await source.changes(node, said.place, topics=True, committed_offsets=True, wait_ms=5000, limit=100)
    (met, unknown) = await source.meet(node, [at, TopicPartition(bytes(range(16)), 0)])
    assert (met.code, met.log_start, met.high_watermark) == (Code.NONE, 0, 2)
    assert (met.home, met.origin, list(met.history)) == (Home(0, south.cluster_id), south.cluster_id, [])
    assert unknown.code is Code.UNKNOWN_TOPIC_ID
    (answer,) = await source.fetch(node, [Wanted(at, Offset(0), met.leader_epoch, 1 << 20)], max_bytes=1 << 20)
    assert (answer.code, answer.high_watermark, answer.resume) == (Code.NONE, 2, -1)
    assert [record.value for view in answer.records for record in iter_records(view)] == [b"one", b"two"]
    other = LeaderEpoch(met.leader_epoch + 1)
    (fenced,) = await source.fetch(node, [Wanted(at, Offset(0), other, 100)], max_bytes=100)
    assert fenced.code is Code.UNKNOWN_LEADER_EPOCH
    again = await source.changes(node, FeedPlace("other", 1), topics=True, committed_offsets=True, wait_ms=0, limit=100)
    assert again.reset


async def test_a_batch_that_straddles_the_wanted_offset_is_cut(south: OneNode, source: HeadraceSource) -> None:
    await south.append("a", *(f"{number}".encode() for number in range(10)))
    await south.append("a", b"next")
    row = await south.row("a")
    assert row is not None
    wanted = Wanted(TopicPartition(row.topic_id, 0), Offset(4), NO_EPOCH, 1 << 20)
    (answer,) = await source.fetch(south.parts.node.node_id, [wanted], max_bytes=1 << 20)
    found = [record for view in answer.records for record in iter_records(view)]
    assert [record.offset for record in found] == list(range(4, 11))
    assert [record.value for record in found] == [*(f"{number}".encode() for number in range(4, 10)), b"next"]
    assert [header.base_offset for view in answer.records for header, _ in iter_batches(view)] == [4, 10]


async def test_committed_offsets_come_by_pages_and_by_key(south: OneNode, source: HeadraceSource) -> None:
    await south.append("a", b"x")
    for number in range(5):
        await south.commit(f"g{number}", "a", 1, now=1000 + number)
    row = await south.row("a")
    assert row is not None
    found, after = [], None
    while True:
        page = await source.committed_offsets(after=after, limit=2)
        found += page.committed_offsets
        after = page.after
        if after is None:
            break
    assert [(each.key, each.offset, each.committed_ms) for each in found] == [
        (CommittedOffsetKey(f"g{number}", row.topic_id, 0), 1, 1000 + number) for number in range(5)
    ]
    keys = [
        CommittedOffsetKey("g3", row.topic_id, 0),
        CommittedOffsetKey("gone", row.topic_id, 0),
        CommittedOffsetKey("g4", b"", -1),
    ]
    assert sorted(each.key.group for each in await source.committed_offsets_of(keys)) == ["g3", "g4"]


async def test_a_home_that_is_demoted_is_elsewhere_and_another_can_be_announced(
    south: OneNode, source: HeadraceSource
) -> None:
    await south.append("a", b"x", b"y")
    row = await south.row("a")
    assert row is not None
    at = row.topic_id
    higher = Announcement(at, Home(3, "west"), south.cluster_id, {0: [HomeStart(3, "west", Offset(2))]})
    unknown = Announcement(bytes(range(16)), Home(3, "west"), south.cluster_id, {})
    told = await source.announce([higher, unknown], bootstrap=["127.0.0.1:9"], cluster="west", stream="/there")
    assert [code for code, _ in told] == [Code.NONE, Code.UNKNOWN_TOPIC_ID]
    moved = await south.row("a")
    assert moved is not None
    assert moved.home == Home(3, "west")
    (link,) = await south.parts.catalog.query(lambda reader: reader.links.all())
    assert (link.name, link.config.source_stream) == ("back-west", "/there")
    (refused, gone) = await source.demote([at, bytes(range(16))], to="east")
    assert (refused.code, gone.code) == (Code.POLICY_VIOLATION, Code.UNKNOWN_TOPIC_ID)
    assert "is at home in cluster west" in refused.message


async def test_a_source_of_another_version_is_a_problem_that_is_told(
    south: OneNode, source: HeadraceSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.links.serving.source_apis.VERSIONS", (7, 9))
    assert "speaks the versions 7 to 9 of links, this cluster 1 to 1" in ((await source.hello()).problem or "")
    with pytest.raises(KafkaError, match="upgrade the older one"):
        await source.topics(after=None, limit=1)


async def test_a_source_that_has_gone_is_unreachable(south: OneNode, source: HeadraceSource) -> None:
    await source.hello()
    await source.close()
    with pytest.raises(SourceUnreachable, match="closed on this side"):
        await source.topics(after=None, limit=1)
