"""Committed offsets follow their topics, and move with a home."""

from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.links.failover import failover
from headrace.links.failover.failover import Failover
from headrace.links.source.headrace_source import HeadraceSource
from headrace.links.source.source import CommittedOffsetPage
from kit.one_node import OneNode, until
from kit.two_clusters import at, has, linked, paused


async def test_what_was_committed_at_the_former_home_until_it_moved_comes_too(
    south: OneNode, north_cluster: OneNode
) -> None:
    await north_cluster.produce("t", b"a", b"b", b"c")
    await north_cluster.commit("g", "t", 1, now=1_000)
    await linked(south, north_cluster)

    await until(lambda: at(south, 1))
    (syncer,) = [held[1] for held in south.node.links._topic_syncers.values()]
    syncer.committed_offsets.changed = syncer.committed_offsets.look_at_all = lambda *_: None  # type: ignore[method-assign,assignment]
    await north_cluster.commit("g", "t", 3, now=2_000)
    await north_cluster.commit("h", "t", 2, now=2_000)
    (moved,) = await south.admin("home.move", stream="/s", topics=["t"])
    assert (moved["moved"], moved["error"]) == (True, None)
    assert (await south.committed_offset("g", "t"), await south.committed_offset("h", "t")) == (3, 2)
    await south.commit("g", "t", 2, now=1_500)
    assert await at(south, 2), "what is committed at the home counts"


async def test_a_former_home_whose_coordinator_is_not_ready_is_asked_for_committed_offsets_again(
    south: OneNode, north_cluster: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await north_cluster.produce("t", b"a", b"b")
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a", b"b"]))
    await north_cluster.commit("g", "t", 1)

    await until(lambda: at(south, 1))
    (syncer,) = [held[1] for held in south.node.links._topic_syncers.values()]
    syncer.committed_offsets.changed = syncer.committed_offsets.look_at_all = lambda *_: None  # type: ignore[method-assign,assignment]
    await north_cluster.commit("g", "t", 2)
    asked: list[int] = []
    committed_offsets = HeadraceSource.committed_offsets

    async def loads(self: HeadraceSource, **page: Any) -> CommittedOffsetPage:
        asked.append(1)
        if len(asked) < 4:
            raise KafkaError(Code.COORDINATOR_LOAD_IN_PROGRESS)
        return await committed_offsets(self, **page)

    monkeypatch.setattr(HeadraceSource, "committed_offsets", loads)
    (moved,) = await south.admin("home.move", stream="/s", topics=["t"])
    assert (moved["moved"], moved["error"]) == (True, None)
    assert await at(south, 2)


async def test_a_move_says_that_newest_committed_offsets_did_not_come(
    south: OneNode, north_cluster: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await north_cluster.produce("t", b"a")
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a"]))

    async def loads(self: HeadraceSource, **_page: Any) -> CommittedOffsetPage:
        raise KafkaError(Code.COORDINATOR_LOAD_IN_PROGRESS, "group g is loading")

    monkeypatch.setattr(HeadraceSource, "committed_offsets", loads)
    monkeypatch.setattr(failover, "COMMITTED_OFFSETS_S", 0.1)
    (moved,) = await south.admin("home.move", stream="/s", topics=["t"])
    assert moved["moved"]
    assert "group g is loading" in moved["error"]


async def test_a_move_that_ends_before_all_is_here_brings_the_offsets_that_it_can_and_says_which_topics_lack_some(
    south: OneNode, north_cluster: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await north_cluster.produce("t", b"a")
    await north_cluster.produce("t", b"b")
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a", b"b"]))
    (syncer,) = [held[1] for held in south.node.links._topic_syncers.values()]
    syncer.committed_offsets.changed = syncer.committed_offsets.look_at_all = lambda *_: None  # type: ignore[method-assign,assignment]
    demote = HeadraceSource.demote

    async def demotes_more(self: HeadraceSource, *args: Any, **more: Any) -> Any:
        await paused(south)
        await north_cluster.produce("t", b"c")
        await north_cluster.commit("g", "t", 3)
        await north_cluster.commit("h", "t", 2)
        return await demote(self, *args, **more)

    monkeypatch.setattr(HeadraceSource, "demote", demotes_more)
    monkeypatch.setattr(failover, "CAUGHT_UP_S", 0.1)
    (moved,) = await south.admin("home.move", stream="/s", topics=["t"])
    assert moved["moved"]
    assert "it takes writes once all records" in moved["error"]
    assert "the offsets that groups committed last at its former home may be missing" in moved["error"]
    assert (await south.committed_offset("g", "t"), await south.committed_offset("h", "t")) == (None, 2)


async def test_a_group_that_had_read_what_diverged_goes_on_with_what_the_new_home_had_instead(
    south: OneNode, north_cluster: OneNode
) -> None:
    await north_cluster.produce("t", b"a", b"b")
    await north_cluster.commit("g", "t", 1, now=1_000)
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a", b"b"]))

    await until(lambda: at(south, 1))
    await paused(south)
    await north_cluster.produce("t", b"lost-1", b"lost-2")
    await north_cluster.commit("g", "t", 4, now=2_000)
    await south.admin("home.move", stream="/s", topics=["t"], force=True)
    await south.produce("t", b"c", b"d", b"e")
    await south.admin("link.resume", name="l")
    await until(lambda: has(north_cluster, "t", [b"a", b"b", b"c", b"d", b"e"]))
    (home,) = await north_cluster.admin("home.move", stream="/s", topics=["t"])
    assert (home["moved"], home["error"]) == (True, None)
    assert await at(north_cluster, 2), "c is the first that it has not read"


@pytest.mark.parametrize("ahead_ms", [-60_000, 60_000])
async def test_a_commit_at_the_new_home_wins_whatever_the_former_homes_clock_says(
    south: OneNode, north_cluster: OneNode, monkeypatch: pytest.MonkeyPatch, ahead_ms: int
) -> None:
    await north_cluster.produce("t", b"a", b"b", b"c")
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a", b"b", b"c"]))
    (syncer,) = [held[1] for held in south.node.links._topic_syncers.values()]
    syncer.committed_offsets.changed = syncer.committed_offsets.look_at_all = lambda *_: None  # type: ignore[method-assign,assignment]
    at = south.parts.runtime.now()
    await north_cluster.commit("g", "t", 1, now=at + ahead_ms)
    await north_cluster.commit("h", "t", 1, now=at + ahead_ms)
    bring = Failover._bring_committed_offsets

    async def after_a_commit_here(failover: Failover, *args: Any) -> None:
        await south.commit("g", "t", 3, now=at)
        await bring(failover, *args)

    monkeypatch.setattr(Failover, "_bring_committed_offsets", after_a_commit_here)
    (moved,) = await south.admin("home.move", stream="/s", topics=["t"])
    assert (moved["moved"], moved["error"]) == (True, None)
    assert (await south.committed_offset("g", "t"), await south.committed_offset("h", "t")) == (3, 1)
