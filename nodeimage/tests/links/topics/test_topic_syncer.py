"""What a topic syncer does with a source's topics, homes and committed offsets, in the catalog of a real node."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from headrace.base.addresses import Address
from headrace.base.errors import Code
from headrace.base.ids import Home, LeaderEpoch, Millis, Offset
from headrace.catalog.committed_offsets import CommittedOffset, CopyOffsets, Expired, ExpireOffsets
from headrace.catalog.groups import PutGroup
from headrace.catalog.homes import HomeChange, SetHome
from headrace.catalog.link_config import LinkConfig
from headrace.catalog.links import PutLink
from headrace.kafka_client.client import Client
from headrace.links.failover.home_apply import HomeApplier, Unsettled
from headrace.links.source import kafka_source, kafka_topics
from headrace.links.source.kafka_source import KafkaSource
from headrace.links.source.source import Source
from headrace.links.topics import topic_syncer as syncer_module
from headrace.links.topics.topic_syncer import TopicSyncer
from headrace.security.client_security import Security
from headrace.tracing.tracer import NO_TRACER, Tracer
from headrace.wire.api_keys import ApiKey
from kit.fake_kafka import FakeKafka
from kit.fake_source import NODE, FakeSource
from kit.kept_spans import KeptSpans
from kit.one_node import OneNode, until
from kit.played_kafka import ID, OTHER, PlayedKafka, played_topic

Keep = Callable[..., Awaitable[TopicSyncer]]


@asynccontextmanager
async def kept(
    south: OneNode, north: Source, tracer: Tracer = NO_TRACER, **config: object
) -> AsyncIterator[TopicSyncer]:
    """A running topic syncer."""
    fields = {"source": ["north:9092"], "source_stream": "/s", **config}
    command = PutLink(name="l", stream="/s", config=LinkConfig(**fields), now=Millis(1), create=True)  # type: ignore[arg-type]
    outcome = await south.parts.catalog.submit(command)
    syncer = south.topic_syncer(outcome.link, north, tracer)
    running = asyncio.create_task(syncer.run())
    try:
        yield syncer
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def looked_at_all(north: FakeSource, syncer: TopicSyncer) -> None:
    """Have all committed offsets scanned, and wait until they are processed."""
    asked = north.calls["committed_offsets"]
    syncer.committed_offsets.look_at_all()
    await until(lambda: north.calls["committed_offsets"] > asked and syncer.committed_offsets.held == 0)


async def taken_home(south: OneNode, name: str) -> bytes:
    """Make this cluster the topic's home; returns the topic's id."""
    row = await south.row(name)
    assert row is not None
    change = HomeChange(topic_id=row.topic_id, counter=1, cluster=south.cluster_id, lists=None)
    assert await south.parts.catalog.submit(SetHome(items=[change])) == [Code.NONE]
    return row.topic_id


async def test_topics_are_made_as_copies_with_their_ids_and_follow(south: OneNode, north: FakeSource) -> None:
    made = [north.put(f"t{index}", partitions=index + 1, configs={"retention.ms": "5"}) for index in range(5)]
    async with kept(south, north):
        await until(lambda: _exists(south, "t4"))
        for topic in made:
            row = await south.row(topic.name)
            assert row is not None
            assert (row.topic_id, row.partitions, row.home) == (topic.topic_id, topic.partitions, Home(0, "north"))
            assert row.configs == {"retention.ms": "5"}
        late = north.put("late")
        north.put("t0", partitions=3, configs={"max.message.bytes": "9", "retention.ms": "7"})

        async def followed() -> bool:
            row, other = await south.row("t0"), await south.row("late")
            return (
                row is not None
                and other is not None
                and other.topic_id == late.topic_id
                and row.partitions == 3
                and row.configs == {"retention.ms": "5", "max.message.bytes": "9"}
            )

        await until(followed)


async def test_what_it_does_in_the_catalog_is_traced_and_a_look_that_finds_nothing_is_not(
    south: OneNode, north: FakeSource
) -> None:
    north.put("t", partitions=2)
    north.put("u", configs={"retention.ms": "5"})
    tracer = KeptSpans()
    async with kept(south, north, tracer) as syncer:
        await syncer.swept.wait()
        asked = north.calls["topics"]
        syncer.look_at_all()
        await until(lambda: north.calls["topics"] > asked)
        north.put("t", partitions=3)
        await until(lambda: len(tracer.spans) == 2)
    told = tracer.told("headrace.link.topics")
    quiet = {"grown": 0, "configured": 0, "moved": 0, "announced": 0, "refused": 0, "later": 0}
    about = {"headrace.link": "l", "headrace.path": "/s"}
    assert told == [
        about | {f"headrace.{name}": count for name, count in ({"made": 2} | quiet).items()},
        about | {f"headrace.{name}": count for name, count in ({"made": 0} | quiet | {"grown": 1}).items()},
    ]


async def test_a_kafka_to_which_much_is_written_is_asked_for_topics_and_committed_offsets_no_oftener_for_that(
    south: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_source, "MIN_WAIT_MS", 500)
    monkeypatch.setattr(kafka_topics, "MIN_SCAN_S", 0.5)
    kafka = PlayedKafka()
    kafka.busy = True
    async with FakeKafka(kafka.answer, topics=[played_topic("t", ID)]) as server:
        source = KafkaSource(Client([Address("127.0.0.1", server.port)], security=Security()))
        async with kept(south, source, source_stream="") as syncer:
            await syncer.swept.wait()
            await until(lambda: kafka.asked[ApiKey.LIST_GROUPS] >= 3)
            server.topics.append(played_topic("other", OTHER))
            kafka.committed["g"] = 0
            await until(lambda: _exists(south, "other"))
            await until(lambda: _is_at(south, 0))
            assert len(server.seen) < 10 * kafka.asked[ApiKey.LIST_GROUPS]
        await source.close()


async def test_a_topic_whose_configs_the_source_does_not_tell_is_copied_with_the_defaults_and_that_is_said(
    south: OneNode, north: FakeSource
) -> None:
    topic = north.put("t", configs={"retention.ms": "5"})
    north.listed[topic.topic_id] = replace(topic, configs=None)
    async with kept(south, north) as syncer:
        await until(lambda: _exists(south, "t"))
        await syncer.swept.wait()
        row = await south.row("t")
        assert row is not None
        assert row.configs == {}
        assert "copied without its configs" in syncer.refused["t"]
        north.put("t", configs={"max.message.bytes": "9"})
        await until(lambda: not syncer.refused)


async def test_only_what_a_pattern_matches_is_copied_and_one_that_matches_nothing_is_told(
    south: OneNode, north: FakeSource
) -> None:
    for name in ("pump-1", "fan", "pump-1.diverged"):
        north.put(name)
    async with kept(south, north, topics=["pump-*", "press-*"]) as syncer:
        await syncer.swept.wait()
        assert await south.row("pump-1") is not None
        assert await south.row("fan") is None
        assert await south.row("pump-1.diverged") is None
        assert syncer.refused == {"press-*": "no topic of the source matches it now"}
        north.put("press-7")
        await until(lambda: _exists(south, "press-7"))
        await until(lambda: not syncer.refused)


async def test_a_clash_and_a_topic_that_is_gone_are_told_and_nothing_is_lost(south: OneNode, north: FakeSource) -> None:
    await south.append("mine", b"a")
    mine = await south.row("mine")
    north.put("mine")
    gone = north.put("gone")
    async with kept(south, north) as syncer:
        await syncer.swept.wait()
        assert "headrace link adopt" in syncer.refused["mine"]
        assert await south.row("mine") == mine
        north.delete(gone)
        await until(lambda: "gone at the source" in syncer.refused.get("gone", ""))
        assert await south.row("gone") is not None
        again = north.put("gone")
        assert again.topic_id != gone.topic_id
        await until(lambda: "deleted and recreated" in syncer.refused.get("gone", ""))


async def test_a_source_that_names_no_nodes_for_a_moment_is_asked_again_after_a_pause(
    south: OneNode, north: FakeSource
) -> None:
    north.put("t")
    north.nodes = []
    async with kept(south, north) as syncer:
        await until(lambda: syncer.last_error == "fake names no nodes yet")
        assert north.calls["hello"] < 20
        north.nodes = [NODE]
        await until(lambda: _exists(south, "t"))
        north.put("late")
        await until(lambda: _exists(south, "late"))


@pytest.mark.parametrize(
    "call", ["hello", "topics", "meet", "topics_by_id", "changes", "committed_offsets", "announce"]
)
async def test_calls_that_fail_are_made_again_and_their_work_is_done(
    south: OneNode, north: FakeSource, call: str
) -> None:
    north.put("moved", home=(2, "east"), history=[(2, "east", 0)])
    topic = north.put("t")
    north.fail_at[call] = 2
    async with kept(south, north) as syncer:
        await syncer.swept.wait()
        await until(lambda: _exists(south, "moved"))
        north.put("late")
        await until(lambda: _exists(south, "late"))
        north.commit("g", topic, 0)
        await until(lambda: _is_at(south, 0))


@pytest.mark.parametrize("call", ["committed_offsets", "changes"])
async def test_an_error_is_told_until_the_step_that_had_it_works_again(
    south: OneNode, north: FakeSource, call: str
) -> None:
    """Which link copies committed offsets depends on it."""
    async with kept(south, north) as syncer:
        await syncer.swept.wait()
        await until(lambda: north.calls.get("committed_offsets", 0) > 0 and syncer.last_error is None)
        north.fail_at[call] = 1_000_000
        if call == "changes":
            north.begin_anew()
        else:
            syncer.committed_offsets.look_at_all()
        await until(lambda: syncer.last_error is not None)
        told_ms = syncer.last_error_ms
        asked = north.calls["topics"]
        syncer.look_at_all()
        await until(lambda: north.calls["topics"] > asked)
        north.put("t")
        syncer.look_at_all()
        await until(lambda: _exists(south, "t"))
        assert syncer.last_error is not None, "the topics are in line, but the other step has not worked again"
        assert (syncer.last_error_ms or 0) >= (told_ms or 0)
        north.fail_at[call] = 0
        await until(lambda: syncer.last_error is None, timeout_s=60)


async def test_what_is_refused_is_told_while_all_topics_are_looked_at_again(south: OneNode, north: FakeSource) -> None:
    await south.append("mine", b"a")
    other = north.put("mine")
    async with kept(south, north) as syncer:
        await syncer.swept.wait()
        assert set(syncer.refused) == {"mine"}
        north.fail_at["topics"] = 1_000_000
        syncer.look_at_all()
        await until(lambda: syncer.last_error is not None)
        assert set(syncer.refused) == {"mine"}
        del north.listed[other.topic_id]  # without a change in the feed
        north.fail_at["topics"] = 0
        syncer.look_at_all()
        await until(lambda: not syncer.refused)


async def _exists(south: OneNode, name: str) -> bool:
    return await south.row(name) is not None


async def _is_at(south: OneNode, offset: int) -> bool:
    return await south.committed_offset("g", "t") == offset


async def test_a_source_that_is_this_cluster_or_another_than_before_is_refused(
    south: OneNode, north: FakeSource
) -> None:
    north.cluster = south.cluster_id
    async with kept(south, north) as syncer:
        await until(lambda: "this cluster itself" in (syncer.last_error or ""))
        assert not north.calls.get("topics")
    north.cluster = "north"
    await south.admin_delete_link("l")
    async with kept(south, north) as syncer:
        await syncer.swept.wait()
        assert syncer.link.config.source_cluster == "north"
        north.cluster = "east"
        north.begin_anew()
        north.fail_at["changes"] = 1
        north.fail_at["topics"] = 1
        await until(lambda: "was north before" in (syncer.last_error or ""))


async def test_a_higher_home_at_the_source_is_adopted_with_its_history_once_all_partitions_are_settled(
    south: OneNode, north: FakeSource
) -> None:
    topic = north.put("t", partitions=2)
    async with kept(south, north) as syncer:
        await until(lambda: _exists(south, "t"))
        north.unsettled.add(topic.topic_id)
        north.put("t", partitions=2, home=(1, "east"), history=[(1, "east", 7)])
        await until(lambda: north.calls.get("meet", 0) >= 2)
        row = await south.row("t")
        assert row is not None
        assert row.home == Home(0, "north")
        north.unsettled.clear()

        async def adopted() -> bool:
            found = await south.row("t")
            return found is not None and found.home == Home(1, "east")

        await until(adopted)

        async def settled() -> bool:  # by the node, which has nothing to cut
            found = await south.parts.catalog.query(lambda reader: reader.homes.histories([row.number]))
            return {index: [tuple(each) for each in starts] for (_, index), starts in found.items()} == {
                0: [(1, "east", 7)],
                1: [(1, "east", 7)],
            }

        await until(settled)
        assert syncer.refused == {}


async def test_committed_offsets_come_once_their_data_are_here(south: OneNode, north: FakeSource) -> None:
    topic = north.put("t")
    north.commit("g", topic, 2)
    async with kept(south, north) as syncer:
        await until(lambda: _exists(south, "t"))
        await until(lambda: syncer.committed_offsets.held == 1)
        assert await south.committed_offset("g", "t") is None
        await south.append("t", b"a", b"b")
        await until(lambda: _is_at(south, 2))
        await south.append("t", b"c")
        north.commit("g", topic, 1)
        await until(lambda: _is_at(south, 1))
        await until(lambda: syncer.committed_offsets.held == 0)


async def test_a_committed_offset_that_is_told_of_while_others_are_released_is_copied_at_once(
    south: OneNode, north: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = north.put("t")
    async with kept(south, north) as syncer:
        await until(lambda: _exists(south, "t"))
        await south.append("t", b"a", b"b")
        committed_offsets = syncer.committed_offsets
        release, late = committed_offsets._release, []

        async def slow() -> None:
            await release()
            if not late and north.committed:
                late.append(True)
                north.commit("g", topic, 2)
                await until(lambda: bool(committed_offsets._changed))

        monkeypatch.setattr(committed_offsets, "_release", slow)
        north.commit("g", topic, 1)
        await until(lambda: _is_at(south, 2))
        assert late


async def test_what_changes_while_all_is_looked_at_before_the_feed_begins_is_not_missed(
    south: OneNode, north: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, listed, answered = north.put("t"), asyncio.Semaphore(0), asyncio.Event()
    topics, committed_offsets, changes = north.topics, north.committed_offsets, north.changes

    async def early_topics(**asked: Any) -> Any:
        page = await topics(**asked)
        listed.release()
        await answered.wait()
        return page

    async def early_committed_offsets(**asked: Any) -> Any:
        page = await committed_offsets(**asked)
        listed.release()
        await answered.wait()
        return page

    async def late_changes(*args: Any, **asked: Any) -> Any:
        if len(north.listed) == 1:
            await listed.acquire()
            await listed.acquire()
            north.put("late")
            north.commit("g", topic, 1)
            asyncio.get_running_loop().call_later(0.2, answered.set)
        return await changes(*args, **asked)

    monkeypatch.setattr(north, "topics", early_topics)
    monkeypatch.setattr(north, "committed_offsets", early_committed_offsets)
    monkeypatch.setattr(north, "changes", late_changes)
    async with kept(south, north):
        await until(lambda: _exists(south, "late"))
        await south.append("t", b"a")
        await until(lambda: _is_at(south, 1))


async def test_what_was_committed_here_later_stays_when_all_committed_offsets_are_looked_at(
    south: OneNode, north: FakeSource
) -> None:
    topic = north.put("t")
    north.commit("g", topic, 1, at=1_000)
    async with kept(south, north) as syncer:
        await until(lambda: _exists(south, "t"))
        await south.append("t", b"a", b"b", b"c")
        await until(lambda: _is_at(south, 1))
        assert await south.commit("g", "t", 3, now=2_000) == [Code.NONE]
        await looked_at_all(north, syncer)
        assert await south.committed_offset("g", "t") == 3
        north.commit("g", topic, 2, at=1_500)
        await until(lambda: _is_at(south, 2))


async def test_what_was_committed_here_stays_until_a_source_that_tells_no_times_has_another(
    south: OneNode, north: FakeSource
) -> None:
    topic = north.put("t")
    north.commit("g", topic, 2, at=-1)
    async with kept(south, north) as syncer:
        await until(lambda: _exists(south, "t"))
        await south.append("t", b"a", b"b", b"c")
        await until(lambda: _is_at(south, 2))
        for offset in (3, 1):
            assert await south.commit("g", "t", offset) == [Code.NONE]
            await looked_at_all(north, syncer)
            assert await south.committed_offset("g", "t") == offset
        (told,) = north.committed.values()
        north.committed[told.key] = replace(told, offset=Offset(0))  # without a change in the feed
        await looked_at_all(north, syncer)
        assert await south.committed_offset("g", "t") == 0
        assert await south.commit("g", "t", 3) == [Code.NONE]
    await south.admin_delete_link("l")
    async with kept(south, north) as syncer:
        await syncer.swept.wait()
        await looked_at_all(north, syncer)
        assert await south.committed_offset("g", "t") == 3, "a link that begins anew takes nobody back"
        north.commit("g", topic, 1, at=-1)
        await until(lambda: _is_at(south, 1))


async def test_a_committed_offset_that_could_not_be_copied_as_its_group_had_members_here_is_once_they_have_left(
    south: OneNode, north: FakeSource
) -> None:
    generations = itertools.count(1)

    async def let_in(*members: str) -> None:
        group = PutGroup("g", next(generations), "consumer", "", "", list(members), b"", "Stable", Millis(1))
        await south.parts.catalog.submit(group)

    async def told(offset: int) -> None:
        asked = north.calls.get("committed_offsets_of", 0)
        north.commit("g", topic, offset, at=-1)
        await until(lambda: north.calls.get("committed_offsets_of", 0) > asked and syncer.committed_offsets.held == 0)

    topic = north.put("t")
    async with kept(south, north) as syncer:
        await until(lambda: _exists(south, "t"))
        await until(lambda: "changes" in north.calls)
        await south.append("t", *[b"a"] * 9)
        await told(2)
        await let_in("m")
        await told(3)
        await looked_at_all(north, syncer)
        assert await south.committed_offset("g", "t") == 2
        await let_in()
        await looked_at_all(north, syncer)
        assert await south.committed_offset("g", "t") == 3
        await let_in("m")
        await told(4)
        await let_in()
        assert await south.commit("g", "t", 5) == [Code.NONE]
        await told(4)
        await looked_at_all(north, syncer)
        assert await south.committed_offset("g", "t") == 5, "of what was committed here meanwhile nothing is taken back"
        await told(1)
        assert await south.committed_offset("g", "t") == 1


async def test_a_committed_offset_that_another_copy_brings_does_not_take_back_what_the_home_has_told(
    south: OneNode, north: FakeSource
) -> None:
    topic = north.put("t", home=(0, "east"))
    async with kept(south, north):
        await until(lambda: _exists(south, "t"))
        await south.append("t", b"a", b"b", b"c")
        row = await south.row("t")
        assert row is not None
        committed_offset = CommittedOffset(row.topic_id, 0, Offset(3), LeaderEpoch(-1), committed_ms=Millis(2_000))
        command = CopyOffsets("g", [committed_offset], Millis(9_000), south.cluster_id)  # by the link from the east
        assert await south.parts.catalog.submit(command) == [Code.NONE]
        north.commit("g", topic, 1, at=1_000)
        north.commit("h", topic, 1, at=1_000)

        async def h_is_here() -> bool:
            return await south.committed_offset("h", "t") == 1

        await until(h_is_here)
        assert await _is_at(south, 3)
        north.commit("g", topic, 2, at=3_000)  # reset at the home
        await until(lambda: _is_at(south, 2))


async def test_committed_offsets_of_a_group_that_the_source_has_do_not_expire_here(
    south: OneNode, north: FakeSource
) -> None:
    for name in ("t", "u"):
        topic = north.put(name)
        north.commit("g", topic, 1, at=1_000)
        north.commit(f"only-{name}", topic, 1, at=1_000)
    async with kept(south, north) as syncer:
        await until(lambda: _exists(south, "u"))
        await south.append("t", b"a")
        await south.append("u", b"a")
        await until(lambda: syncer.committed_offsets.held == 0)
        long_ago = Millis(2_000)
        for group in ("g", "only-t", "only-u"):
            await south.parts.catalog.submit(PutGroup(group, 0, "", "", "", [], b"", "Empty", long_ago))
        north.committed = {key: each for key, each in north.committed.items() if key.group != "only-u"}
        await looked_at_all(north, syncer)
        expired = await south.parts.catalog.submit(ExpireOffsets(before=Millis(long_ago + 1)))
        assert expired == Expired(committed_offsets=1, groups=1)
        assert [await south.committed_offset("g", name) for name in ("t", "u")] == [1, 1]
        assert await south.committed_offset("only-u", "u") is None


async def test_committed_offsets_of_topics_at_home_here_are_never_touched(south: OneNode, north: FakeSource) -> None:
    await south.append("t", b"a", b"b")
    mine = await south.row("t")
    assert mine is not None
    assert await south.commit("g", "t", 2) == [Code.NONE]
    topic = north.put("t", topic_id=mine.topic_id, home=(0, south.cluster_id))
    north.commit("g", topic, 1)
    async with kept(south, north) as syncer:
        await syncer.swept.wait()
        north.commit("g", topic, 0)
        await until(lambda: north.calls.get("committed_offsets_of", 0) > 0 and syncer.committed_offsets.held == 0)
        assert await south.committed_offset("g", "t") == 2


async def test_a_link_made_again_doubles_nothing(south: OneNode, north: FakeSource) -> None:
    north.put("t", partitions=2)
    async with kept(south, north):
        await until(lambda: _exists(south, "t"))
    before = await south.row("t")
    await south.admin_delete_link("l")
    assert await south.row("t") == before
    async with kept(south, north) as syncer:
        await syncer.swept.wait()
        assert await south.row("t") == before
        assert syncer.refused == {}


async def test_set_home_of_ours_is_told_to_the_source_when_it_is_settled(
    south: OneNode, north: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    applying = asyncio.Event()
    apply_home = HomeApplier._apply_home

    async def held_back(self: HomeApplier, wanted: Unsettled) -> None:
        await applying.wait()
        await apply_home(self, wanted)

    monkeypatch.setattr(HomeApplier, "_apply_home", held_back)
    north.put("t")
    async with kept(south, north) as syncer:
        await until(lambda: _exists(south, "t"))
        topic_id = await taken_home(south, "t")
        asked = north.calls.get("topics_by_id", 0)
        syncer.changed_here([topic_id])
        await until(lambda: north.calls.get("topics_by_id", 0) > asked + 1)
        assert north.announced == [], "its partition is not settled yet"
        applying.set()
        await until(lambda: [item.home for item in north.announced] == [Home(1, south.cluster_id)])


async def test_a_source_that_knows_nothing_of_homes_is_told_of_one_only_once(
    south: OneNode, north: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    north.put("t")
    other = north.put("u")

    async def announce(items: Any, **_told: Any) -> list[tuple[Code, str]]:
        north._call("announce")
        return [(Code.UNSUPPORTED_VERSION, "it cannot follow")] * len(items)

    monkeypatch.setattr(north, "announce", announce)
    async with kept(south, north) as syncer:
        await until(lambda: _exists(south, "u"))
        topic_id = await taken_home(south, "t")
        syncer.changed_here([topic_id])
        await until(lambda: north.calls.get("announce", 0) > 0 and not syncer._due)
        await until(lambda: topic_id not in syncer._later)
        asked = north.calls["topics_by_id"]
        syncer.changed_here([other.topic_id])
        await until(lambda: north.calls["topics_by_id"] > asked)
        assert topic_id not in syncer._tries


async def test_what_cannot_be_done_for_hours_is_still_looked_at(
    south: OneNode, north: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syncer_module, "LONGEST_RETRY_S", 0.01)
    topic = north.put("t", home=(1, "north"), history=[(1, "north", 0)])
    north.unsettled.add(topic.topic_id)
    async with kept(south, north) as syncer:
        await until(lambda: topic.topic_id in syncer._tries)
        syncer._tries[topic.topic_id] = 1_100
        await until(lambda: syncer._tries[topic.topic_id] > 1_102)
        north.unsettled.clear()
        await until(lambda: _exists(south, "t"))
