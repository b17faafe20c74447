"""Links run as long as they exist, and are shown in their present state."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from headrace.base.errors import Code
from headrace.base.ids import Home, Offset
from headrace.links import links
from headrace.links.links import LinkReport, Links
from headrace.links.source.headrace_source import HeadraceSource
from headrace.links.source.source import Fetched, Wanted
from headrace.links.topics.topic_syncer import TopicSyncer
from kit.one_node import OneNode, until
from kit.two_clusters import has, linked


async def test_copies_follow_with_ids_offsets_and_committed_offsets(south: OneNode, north_cluster: OneNode) -> None:
    await north_cluster.produce("t", b"a")
    await north_cluster.produce("t", b"b", b"c")
    assert await north_cluster.commit("g", "t", 2) == [Code.NONE]
    shown = await linked(south, north_cluster)
    assert shown["source_cluster"] == north_cluster.cluster_id
    await until(lambda: has(south, "t", [b"a", b"b", b"c"]))
    there, here = await north_cluster.row("t"), await south.row("t")
    assert there is not None
    assert here is not None
    assert here.topic_id == there.topic_id
    assert here.home == Home(0, north_cluster.cluster_id)
    assert await south.records("t") == await north_cluster.records("t")

    async def committed_offset_is_here() -> bool:
        return await south.committed_offset("g", "t") == 2

    await until(committed_offset_is_here)
    await north_cluster.produce("late", b"x")
    await north_cluster.produce("t", b"d")
    await until(lambda: has(south, "late", [b"x"]))
    await until(lambda: has(south, "t", [b"a", b"b", b"c", b"d"]))

    async def caught_up() -> bool:
        return (await south.admin("link.show", name="l"))["state"] == "CaughtUp"

    await until(caught_up)
    shown = await south.admin("link.show", name="l")
    assert (shown["lag_records"], shown["refused"], shown["diverged"], shown["last_error"]) == (0, [], [], None)


async def test_a_fault_of_ours_ends_no_following_of_links(
    south: OneNode, north_cluster: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_up, failed = Links._keep_up, asyncio.Event()

    async def faulty(self: Links) -> None:
        if self is south.node.links and not failed.is_set():
            failed.set()
            raise KeyError("a fault")
        await keep_up(self)

    monkeypatch.setattr(Links, "_keep_up", faulty)
    await north_cluster.produce("t", b"a")
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a"]))
    assert failed.is_set()


async def test_a_topic_syncer_that_fails_is_begun_anew_however_long_its_source_takes_to_close(
    south: OneNode, north_cluster: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "RETRY_S", 0.01)
    await north_cluster.produce("t", b"a")
    run, close = TopicSyncer.run, HeadraceSource.close
    begun: list[TopicSyncer] = []

    async def fails_first(self: TopicSyncer) -> None:
        begun.append(self)
        if len(begun) == 1:
            raise RuntimeError("unforeseen")
        await run(self)

    async def slowly(self: HeadraceSource) -> None:
        await asyncio.sleep(0.3)
        await close(self)

    monkeypatch.setattr(TopicSyncer, "run", fails_first)
    monkeypatch.setattr(HeadraceSource, "close", slowly)
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a"]))
    assert len(begun) == 2


async def test_a_partition_of_which_nothing_comes_is_shown_with_the_reason(
    south: OneNode, north_cluster: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gives_nothing(_source: object, _node: object, wanted: Sequence[Wanted], **_bounds: int) -> list[Fetched]:
        return [Fetched(each.at, Code.NONE, high_watermark=Offset(each.offset + 1)) for each in wanted]

    monkeypatch.setattr(HeadraceSource, "fetch", gives_nothing)
    await north_cluster.produce("t", b"a")
    await linked(south, north_cluster)

    async def is_shown() -> bool:
        shown = await south.admin("link.show", name="l")
        reason = "the source sends no records although it reports more"
        return bool(shown["blocked"] == [{"topic": "t", "partition": 0, "reason": reason}])

    await until(is_shown)


async def test_what_lacks_is_unknown_where_a_node_does_not_answer(
    south: OneNode, north_cluster: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await north_cluster.produce("t", b"a")
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a"]))
    reports = Links.reports

    async def with_a_silent_node(links: Links, *args: Any, **more: Any) -> list[dict[str, LinkReport]]:
        return [*(await reports(links, *args, **more)), {}]

    monkeypatch.setattr(Links, "reports", with_a_silent_node)
    (moved,) = await south.admin("home.move", stream="/s", topics=["t"], force=True)
    assert (moved["moved"], moved["not_replicated"]) == (True, None)
