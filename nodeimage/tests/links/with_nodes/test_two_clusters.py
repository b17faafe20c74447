"""Two clusters, and the links between them: copies, failover, failback, both ways, clashes."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Home, Millis, Offset
from headrace.catalog.chains import LogStart, SetLogStart
from headrace.catalog.homes import HomeChange, SetHome
from headrace.catalog.topics import CreatePartitions
from headrace.kafka_client.errors import SourceUnreachable
from headrace.links import links
from headrace.links.failover import failover
from headrace.links.failover.failover import Failover
from headrace.links.failover.quarantine import Quarantine
from headrace.links.links import Links, LinkTold
from headrace.links.pull.link_state import Phase
from headrace.links.source.headrace_source import HeadraceSource
from headrace.links.source.source import CommittedOffsetPage, Fetched, Wanted
from headrace.links.topics.topic_apply import TopicApplier
from headrace.links.topics.topic_syncer import TopicSyncer
from kit.one_node import OneNode, until

StartCluster = Callable[[str], Awaitable[OneNode]]


@pytest.fixture
async def north(start: StartCluster) -> OneNode:
    """Another cluster, with a stream /s."""
    node = await start("north")
    await node.admin("stream.create", path="/s")
    return node


async def linked(target: OneNode, source: OneNode, /, **params: Any) -> dict[str, Any]:
    """A link into `target`'s /s from `source`'s."""
    fields = {"name": "l", "source": [source.bootstrap], "source_stream": "/s", "stream": "/s"}
    shown: dict[str, Any] = await target.admin("link.create", **{**fields, **params})
    return shown


async def has(cluster: OneNode, name: str, values: list[bytes], partition: int = 0) -> bool:
    if await cluster.row(name) is None:
        return False
    return await cluster.values(name, partition) == values


async def paused(cluster: OneNode) -> None:
    """Pause its link; from now on nothing more is pulled over it."""
    await cluster.admin("link.pause", name="l")
    puller = cluster.node.links.pullers.puller("l")
    assert puller is not None
    await until(lambda: puller.state.phase is Phase.PAUSED)


async def home_is(cluster: OneNode, name: str, home: OneNode) -> bool:
    row = await cluster.row(name)
    return row is not None and row.home is not None and row.home.cluster == home.cluster_id


async def at(cluster: OneNode, offset: int) -> bool:
    """Whether the cursor of group `g` in topic `t` is there."""
    return await cluster.cursor("g", "t") == offset


async def test_copies_follow_with_ids_offsets_and_cursors(south: OneNode, north: OneNode) -> None:
    await north.produce("t", b"a")
    await north.produce("t", b"b", b"c")
    assert await north.commit("g", "t", 2) == [Code.NONE]
    shown = await linked(south, north)
    assert shown["source_cluster"] == north.cluster_id
    await until(lambda: has(south, "t", [b"a", b"b", b"c"]))
    there, here = await north.row("t"), await south.row("t")
    assert there is not None
    assert here is not None
    assert here.topic_id == there.topic_id
    assert here.home == Home(0, north.cluster_id)
    assert await south.records("t") == await north.records("t")

    async def cursor_is_here() -> bool:
        return await south.cursor("g", "t") == 2

    await until(cursor_is_here)
    await north.produce("late", b"x")
    await north.produce("t", b"d")
    await until(lambda: has(south, "late", [b"x"]))
    await until(lambda: has(south, "t", [b"a", b"b", b"c", b"d"]))

    async def caught_up() -> bool:
        return (await south.admin("link.show", name="l"))["state"] == "CaughtUp"

    await until(caught_up)
    shown = await south.admin("link.show", name="l")
    assert (shown["lag_records"], shown["refused"], shown["diverged"], shown["last_error"]) == (0, [], [], None)


async def test_a_fault_of_ours_ends_no_following_of_links(
    south: OneNode, north: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_up, failed = Links._keep_up, asyncio.Event()

    async def faulty(self: Links) -> None:
        if self is south.node.links and not failed.is_set():
            failed.set()
            raise KeyError("a fault")
        await keep_up(self)

    monkeypatch.setattr(Links, "_keep_up", faulty)
    await north.produce("t", b"a")
    await linked(south, north)
    await until(lambda: has(south, "t", [b"a"]))
    assert failed.is_set()


async def test_a_copy_takes_no_writes_and_names_its_home(south: OneNode, north: OneNode) -> None:
    await north.produce("t", b"a")
    await linked(south, north)
    await until(lambda: has(south, "t", [b"a"]))
    with pytest.raises(KafkaError, match=rf"{north.cluster_id} \({north.bootstrap}\)") as caught:
        await south.produce("t", b"mine")
    assert caught.value.code is Code.POLICY_VIOLATION


async def test_an_agreed_move_loses_nothing_and_the_old_home_follows(south: OneNode, north: OneNode) -> None:
    await north.produce("t", b"a", b"b")
    await linked(south, north)
    await until(lambda: has(south, "t", [b"a", b"b"]))
    (moved,) = await south.admin("home.move", stream="/s")
    assert moved == {
        "topic": "/s:t",
        "home": south.cluster_id,
        "counter": 1,
        "moved": True,
        "not_replicated": 0,
        "error": None,
    }
    await south.produce("t", b"c")
    with pytest.raises(KafkaError, match=south.cluster_id):
        await north.produce("t", b"d")
    await until(lambda: has(north, "t", [b"a", b"b", b"c"]))
    (again,) = await south.admin("home.move", stream="/s")
    assert (again["moved"], again["error"]) == (False, None)
    # And back: by the link that the announcement made.
    (back,) = await north.admin("home.move", stream="/s", topics=["t"])
    assert (back["moved"], back["error"], back["counter"]) == (True, None, 2)
    await north.produce("t", b"e")
    await until(lambda: has(south, "t", [b"a", b"b", b"c", b"e"]))
    assert await south.row("t.diverged") is None
    assert await north.row("t.diverged") is None


async def test_a_former_home_whose_own_link_leaves_the_topic_out_follows_and_takes_it_back(
    south: OneNode, north: OneNode
) -> None:
    await north.produce("t", b"a")
    await south.produce("south-1", b"x")
    await linked(south, north)
    await linked(north, south, name="some", topics=["south-*"])
    await until(lambda: has(south, "t", [b"a"]))
    await until(lambda: has(north, "south-1", [b"x"]))
    (moved,) = await south.admin("home.move", stream="/s", topics=["t"])
    assert (moved["moved"], moved["error"]) == (True, None)
    await south.produce("t", b"b")
    await until(lambda: has(north, "t", [b"a", b"b"]))
    (back,) = await north.admin("home.move", stream="/s", topics=["t"])
    assert (back["moved"], back["error"]) == (True, None)
    await north.produce("t", b"c")
    await until(lambda: has(south, "t", [b"a", b"b", b"c"]))


async def test_a_home_that_no_running_link_copies_from_is_not_asked_to_demote(south: OneNode, north: OneNode) -> None:
    await north.produce("t", b"a")
    await north.produce("u", b"a")
    await linked(south, north)
    await until(lambda: has(south, "t", [b"a"]))
    await until(lambda: has(south, "u", [b"a"]))
    await south.admin("link.alter", name="l", topics=["u"])
    await south.admin("link.pause", name="l")
    moved = await south.admin("home.move", stream="/s")
    told = {each["topic"]: each["error"] for each in moved if not each["moved"]}
    assert "no link of /s copies it" in told["/s:t"]
    assert "link l, which copies it from its home, is paused" in told["/s:u"]
    for name in ("t", "u"):
        await north.produce(name, b"b")
    await south.admin("link.resume", name="l")
    moved = await south.admin("home.move", stream="/s")
    assert {each["topic"]: each["moved"] for each in moved} == {"/s:t": False, "/s:u": True}


async def test_what_was_committed_at_the_former_home_until_it_moved_comes_too(south: OneNode, north: OneNode) -> None:
    await north.produce("t", b"a", b"b", b"c")
    await north.commit("g", "t", 1, now=1_000)
    await linked(south, north)

    await until(lambda: at(south, 1))
    (syncer,) = [held[1] for held in south.node.links._topic_syncers.values()]
    syncer.committed_offsets.changed = syncer.committed_offsets.look_at_all = lambda *_: None  # type: ignore[method-assign,assignment]
    await north.commit("g", "t", 3, now=2_000)
    await north.commit("h", "t", 2, now=2_000)
    (moved,) = await south.admin("home.move", stream="/s", topics=["t"])
    assert (moved["moved"], moved["error"]) == (True, None)
    assert (await south.cursor("g", "t"), await south.cursor("h", "t")) == (3, 2)
    await south.commit("g", "t", 2, now=1_500)
    assert await at(south, 2), "what is committed at the home counts"


async def test_a_former_home_whose_coordinator_is_not_ready_is_asked_for_cursors_again(
    south: OneNode, north: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await north.produce("t", b"a", b"b")
    await linked(south, north)
    await until(lambda: has(south, "t", [b"a", b"b"]))
    await north.commit("g", "t", 1)

    await until(lambda: at(south, 1))
    (syncer,) = [held[1] for held in south.node.links._topic_syncers.values()]
    syncer.committed_offsets.changed = syncer.committed_offsets.look_at_all = lambda *_: None  # type: ignore[method-assign,assignment]
    await north.commit("g", "t", 2)
    asked: list[int] = []
    cursors = HeadraceSource.committed_offsets

    async def loads(self: HeadraceSource, **page: Any) -> CommittedOffsetPage:
        asked.append(1)
        if len(asked) < 4:
            raise KafkaError(Code.COORDINATOR_LOAD_IN_PROGRESS)
        return await cursors(self, **page)

    monkeypatch.setattr(HeadraceSource, "committed_offsets", loads)
    (moved,) = await south.admin("home.move", stream="/s", topics=["t"])
    assert (moved["moved"], moved["error"]) == (True, None)
    assert await at(south, 2)


async def test_a_move_says_that_newest_cursors_did_not_come(
    south: OneNode, north: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await north.produce("t", b"a")
    await linked(south, north)
    await until(lambda: has(south, "t", [b"a"]))

    async def loads(self: HeadraceSource, **_page: Any) -> CommittedOffsetPage:
        raise KafkaError(Code.COORDINATOR_LOAD_IN_PROGRESS, "group g is loading")

    monkeypatch.setattr(HeadraceSource, "committed_offsets", loads)
    monkeypatch.setattr(failover, "COMMITTED_OFFSETS_S", 0.1)
    (moved,) = await south.admin("home.move", stream="/s", topics=["t"])
    assert moved["moved"]
    assert "group g is loading" in moved["error"]


async def test_a_move_that_ends_before_all_is_here_brings_the_cursors_that_it_can_and_says_which_topics_lack_some(
    south: OneNode, north: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await north.produce("t", b"a")
    await north.produce("t", b"b")
    await linked(south, north)
    await until(lambda: has(south, "t", [b"a", b"b"]))
    (syncer,) = [held[1] for held in south.node.links._topic_syncers.values()]
    syncer.committed_offsets.changed = syncer.committed_offsets.look_at_all = lambda *_: None  # type: ignore[method-assign,assignment]
    demote = HeadraceSource.demote

    async def demotes_more(self: HeadraceSource, *args: Any, **more: Any) -> Any:
        await paused(south)
        await north.produce("t", b"c")
        await north.commit("g", "t", 3)
        await north.commit("h", "t", 2)
        return await demote(self, *args, **more)

    monkeypatch.setattr(HeadraceSource, "demote", demotes_more)
    monkeypatch.setattr(failover, "CAUGHT_UP_S", 0.1)
    (moved,) = await south.admin("home.move", stream="/s", topics=["t"])
    assert moved["moved"]
    assert "takes writes once it has all" in moved["error"]
    assert "what groups committed last at its former home may lack" in moved["error"]
    assert (await south.cursor("g", "t"), await south.cursor("h", "t")) == (None, 2)


async def test_a_topic_syncer_that_fails_is_begun_anew_however_long_its_source_takes_to_close(
    south: OneNode, north: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "AGAIN_S", 0.01)
    await north.produce("t", b"a")
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
    await linked(south, north)
    await until(lambda: has(south, "t", [b"a"]))
    assert len(begun) == 2


async def test_a_partition_of_which_nothing_comes_is_shown_with_the_reason(
    south: OneNode, north: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gives_nothing(_source: object, _node: object, wanted: Sequence[Wanted], **_bounds: int) -> list[Fetched]:
        return [Fetched(each.at, Code.NONE, high_watermark=Offset(each.offset + 1)) for each in wanted]

    monkeypatch.setattr(HeadraceSource, "fetch", gives_nothing)
    await north.produce("t", b"a")
    await linked(south, north)

    async def told() -> bool:
        shown = await south.admin("link.show", name="l")
        reason = "the source gives nothing of what it says it has"
        return bool(shown["blocked"] == [{"topic": "t", "partition": 0, "reason": reason}])

    await until(told)


async def test_a_group_that_had_read_what_diverged_goes_on_with_what_the_new_home_had_instead(
    south: OneNode, north: OneNode
) -> None:
    await north.produce("t", b"a", b"b")
    await north.commit("g", "t", 1, now=1_000)
    await linked(south, north)
    await until(lambda: has(south, "t", [b"a", b"b"]))

    await until(lambda: at(south, 1))
    await paused(south)
    await north.produce("t", b"lost-1", b"lost-2")
    await north.commit("g", "t", 4, now=2_000)
    await south.admin("home.move", stream="/s", topics=["t"], force=True)
    await south.produce("t", b"c", b"d", b"e")
    await south.admin("link.resume", name="l")
    await until(lambda: has(north, "t", [b"a", b"b", b"c", b"d", b"e"]))
    (home,) = await north.admin("home.move", stream="/s", topics=["t"])
    assert (home["moved"], home["error"]) == (True, None)
    assert await at(north, 2), "c is the first that it has not read"


@pytest.mark.parametrize("ahead_ms", [-60_000, 60_000])
async def test_a_commit_at_the_new_home_wins_whatever_the_former_homes_clock_says(
    south: OneNode, north: OneNode, monkeypatch: pytest.MonkeyPatch, ahead_ms: int
) -> None:
    await north.produce("t", b"a", b"b", b"c")
    await linked(south, north)
    await until(lambda: has(south, "t", [b"a", b"b", b"c"]))
    (syncer,) = [held[1] for held in south.node.links._topic_syncers.values()]
    syncer.committed_offsets.changed = syncer.committed_offsets.look_at_all = lambda *_: None  # type: ignore[method-assign,assignment]
    at = south.parts.runtime.now()
    await north.commit("g", "t", 1, now=at + ahead_ms)
    await north.commit("h", "t", 1, now=at + ahead_ms)
    bring = Failover._bring_committed_offsets

    async def after_a_commit_here(failover: Failover, *args: Any) -> None:
        await south.commit("g", "t", 3, now=at)
        await bring(failover, *args)

    monkeypatch.setattr(Failover, "_bring_committed_offsets", after_a_commit_here)
    (moved,) = await south.admin("home.move", stream="/s", topics=["t"])
    assert (moved["moved"], moved["error"]) == (True, None)
    assert (await south.cursor("g", "t"), await south.cursor("h", "t")) == (3, 1)


async def test_what_lacks_is_unknown_where_a_node_does_not_answer(
    south: OneNode, north: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await north.produce("t", b"a")
    await linked(south, north)
    await until(lambda: has(south, "t", [b"a"]))
    told = Links.told

    async def with_a_silent_node(links: Links, *args: Any, **more: Any) -> list[dict[str, LinkTold]]:
        return [*(await told(links, *args, **more)), {}]

    monkeypatch.setattr(Links, "told", with_a_silent_node)
    (moved,) = await south.admin("home.move", stream="/s", topics=["t"], force=True)
    assert (moved["moved"], moved["not_replicated"]) == (True, None)


async def test_a_forced_move_sets_aside_what_only_the_old_home_had(south: OneNode, north: OneNode) -> None:
    await north.produce("t", b"a", b"b")
    await linked(south, north)
    await until(lambda: has(south, "t", [b"a", b"b"]))
    await paused(south)
    await north.produce("t", b"lost-1")
    await north.produce("t", b"lost-2")
    (moved,) = await south.admin("home.move", stream="/s", topics=["t"], force=True)
    assert (moved["moved"], moved["home"], moved["error"]) == (True, south.cluster_id, None)
    assert moved["not_replicated"] is None, "a link that is paused does not hear what the home has"
    await south.produce("t", b"c")
    await south.admin("link.resume", name="l")
    await until(lambda: has(north, "t", [b"a", b"b", b"c"]))
    await until(lambda: has(north, "t.diverged", [b"lost-1", b"lost-2"]))
    assert [dict(each.headers)["headrace.offset"] for each in await north.records("t.diverged")] == [b"2", b"3"]
    (back,) = [each["name"] for each in await north.admin("link.list")]
    shown = await north.admin("link.show", name=back)
    assert shown["diverged"] == [{"topic": "t", "partition": 0, "records": 2, "into": "/s:t.diverged"}]
    (home,) = await north.admin("home.move", stream="/s", topics=["t"])
    assert home["moved"], home
    await north.produce("t", b"d")
    await until(lambda: has(south, "t", [b"a", b"b", b"c", b"d"]))
    assert await has(north, "t.diverged", [b"lost-1", b"lost-2"])


async def test_a_link_has_not_caught_up_while_records_are_set_aside(
    south: OneNode, north: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await north.produce("t", b"a")
    await linked(south, north)
    await until(lambda: has(south, "t", [b"a"]))
    await paused(south)
    await north.produce("t", b"lost")
    keep, going_on = Quarantine.add, asyncio.Event()

    async def waits(*args: Any, **more: Any) -> Any:
        await going_on.wait()
        return await keep(*args, **more)

    monkeypatch.setattr(Quarantine, "add", waits)
    await south.admin("home.move", stream="/s", topics=["t"], force=True)
    await south.admin("link.resume", name="l")

    async def states() -> set[str]:
        return {each["state"] for each in await north.admin("link.list")}

    async def follows() -> bool:
        return await home_is(north, "t", south) and bool(await states())

    await until(follows)
    for _ in range(20):
        assert await states() <= {"Connecting", "CatchingUp"}
        await asyncio.sleep(0.02)
    going_on.set()

    async def caught_up() -> bool:
        return await states() == {"CaughtUp"}

    await until(caught_up)
    assert await has(north, "t.diverged", [b"lost"])


async def test_a_forced_move_tells_how_many_records_are_known_to_lack(south: OneNode, north: OneNode) -> None:
    await north.produce("t", b"a")
    await north.produce("whole", b"a")
    await linked(south, north)
    await until(lambda: has(south, "t", [b"a"]))
    await until(lambda: has(south, "whole", [b"a"]))
    await south.admin("link.alter", name="l", throttle=1024)

    def is_throttled() -> bool:
        puller = south.node.links.pullers.puller("l")
        return puller is not None and puller.state.fetching.bucket.rate == 1024

    await until(is_throttled)
    big = b"x" * 100_000
    await north.produce("t", big, b"y")  # takes what the throttle owes, and more
    await until(lambda: has(south, "t", [b"a", big, b"y"]))
    await north.produce("t", b"c", b"d")

    async def lag() -> bool:
        heard = south.node.links.told_here(["l"])["l"].heard
        return heard and bool((await south.admin("link.show", name="l"))["lag_records"] == 2)

    await until(lag)
    moved = {each["topic"]: each for each in await south.admin("home.move", stream="/s", force=True)}
    assert (moved["/s:t"]["not_replicated"], moved["/s:whole"]["not_replicated"]) == (2, 0)


async def test_a_home_that_moves_on_while_it_is_moved_here_is_not_taken(
    south: OneNode, north: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await north.produce("t", b"a")
    await linked(south, north)
    await until(lambda: has(south, "t", [b"a"]))
    demote = Failover._demote

    async def then_it_is_taken_back(failover: Failover, *args: Any) -> Any:
        found = await demote(failover, *args)
        await north.admin("home.move", stream="/s", topics=["t"], force=True)
        await north.produce("t", b"b")
        return found

    monkeypatch.setattr(Failover, "_demote", then_it_is_taken_back)
    (moved,) = await south.admin("home.move", stream="/s", topics=["t"])
    assert not moved["moved"]
    assert f"has moved on to cluster {north.cluster_id}" in moved["error"]
    await until(lambda: has(south, "t", [b"a", b"b"]))
    assert await home_is(south, "t", north)
    assert await home_is(north, "t", north)
    assert await north.row("t.diverged") is None


async def test_a_home_that_was_given_is_taken_up_though_its_source_is_away_for_a_moment(
    south: OneNode, north: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await north.produce("t", b"a")
    await linked(south, north)
    await until(lambda: has(south, "t", [b"a"]))
    apply_homes, away = TopicApplier.apply_homes, [True]

    async def away_once(*args: Any) -> Any:
        if away.pop() if away else False:
            raise SourceUnreachable("away")
        return await apply_homes(*args)

    async def never(*_args: Any, **_more: Any) -> Any:  # of the topic syncer, which would find it sooner or later
        raise SourceUnreachable("away")

    monkeypatch.setattr(TopicApplier, "carry_out", never)
    monkeypatch.setattr(TopicApplier, "apply_homes", away_once)
    (moved,) = await south.admin("home.move", stream="/s", topics=["t"])
    assert (moved["moved"], moved["home"], moved["error"]) == (True, south.cluster_id, None)
    assert await home_is(south, "t", south)
    assert not away


async def test_homes_on_both_sides_of_a_link_in_both_directions(south: OneNode, north: OneNode) -> None:
    await north.produce("of-north", b"n")
    await south.produce("of-south", b"s")
    await linked(south, north, direction="both", bootstrap=[south.bootstrap])
    await until(lambda: has(south, "of-north", [b"n"]))
    await until(lambda: has(north, "of-south", [b"s"]))
    assert [each["name"] for each in await north.admin("link.list")] == ["l"]
    await linked(south, north, direction="both", bootstrap=[south.bootstrap], if_not_exists=True)
    await north.produce("of-north", b"n2")
    await south.produce("of-south", b"s2")
    await until(lambda: has(south, "of-north", [b"n", b"n2"]))
    await until(lambda: has(north, "of-south", [b"s", b"s2"]))
    await south.admin("link.alter", name="l", topics=["of-*"])
    assert (await north.admin("link.show", name="l"))["topics"] == ["of-*"]
    await north.admin("link.delete", name="l")
    with pytest.raises(KafkaError, match="no link was made or changed: there is no link"):
        await south.admin("link.alter", name="l", topics=["*"])
    assert (await south.admin("link.show", name="l"))["topics"] == ["of-*"]


async def test_a_clash_is_refused_until_the_sources_topic_is_adopted(south: OneNode, north: OneNode) -> None:
    await south.produce("t", b"ours-1", b"ours-2")
    await north.produce("t", b"theirs")
    await linked(south, north)

    async def refused() -> bool:
        return [each["topic"] for each in (await south.admin("link.show", name="l"))["refused"]] == ["t"]

    await until(refused)
    assert await has(south, "t", [b"ours-1", b"ours-2"])
    assert await south.admin("link.adopt", name="l") == [
        {"topic": "t", "records": 2, "into": "/s:t.diverged", "error": None}
    ]
    await until(lambda: has(south, "t", [b"theirs"]))
    assert await has(south, "t.diverged", [b"ours-1", b"ours-2"])


async def test_a_deleted_link_leaves_copies_and_one_made_again_goes_on(south: OneNode, north: OneNode) -> None:
    await north.produce("t", b"a")
    await linked(south, north)
    await until(lambda: has(south, "t", [b"a"]))
    await south.admin("link.delete", name="l")
    await north.produce("t", b"b")
    with pytest.raises(KafkaError):
        await south.produce("t", b"mine")
    await linked(south, north)
    await until(lambda: has(south, "t", [b"a", b"b"]))


async def test_a_source_that_cannot_be_copied_from_is_refused_with_a_clear_line(south: OneNode, north: OneNode) -> None:
    async def refused(**params: Any) -> str:
        with pytest.raises(KafkaError) as caught:
            await linked(south, north, **params)
        return str(caught.value)

    assert "itself" in await refused(source=[south.bootstrap])
    assert "no stream /other" in await refused(source_stream="/other")
    assert "127.0.0.1:1" in await refused(source=["127.0.0.1:1"])
    assert await south.admin("link.list") == []


async def test_credentials_are_sent_to_a_new_address_only_if_they_are_given_with_it(
    south: OneNode, north: OneNode
) -> None:
    met: list[object] = []
    stranger = await asyncio.start_server(lambda _, writer: met.append(writer.close()), "127.0.0.1", 0)
    other = f"127.0.0.1:{stranger.sockets[0].getsockname()[1]}"
    credentials = {"security.protocol": "PLAINTEXT"}
    await linked(south, north, credentials=credentials)
    with pytest.raises(KafkaError, match=f"not given for {other}: give them again") as refused:
        await south.admin("link.alter", name="l", source=[north.bootstrap, other])
    assert refused.value.code == Code.INVALID_REQUEST
    assert met == []
    same = await south.admin("link.alter", name="l", source=[north.bootstrap], topics=["t*"])
    assert (same["source"], same["topics"]) == ([north.bootstrap], ["t*"])
    given = await south.admin("link.alter", name="l", source=[north.bootstrap, other], credentials=credentials)
    assert given["source"] == [north.bootstrap, other]
    without = await south.admin("link.alter", name="l", source=[north.bootstrap], credentials={})
    assert without["credentials"] == []
    free = await south.admin("link.alter", name="l", source=[north.bootstrap, other])
    assert free["source"] == [north.bootstrap, other]
    stranger.close()


async def test_moving_home_without_a_link_says_what_to_do(south: OneNode, north: OneNode) -> None:
    await north.produce("t", b"a")
    await linked(south, north)
    await until(lambda: has(south, "t", [b"a"]))
    await south.admin("link.delete", name="l")
    (moved,) = await south.admin("home.move", stream="/s")
    assert "--force" in moved["error"]
    with pytest.raises(KafkaError, match="run this at that cluster"):
        await south.admin("home.move", stream="/s", to=north.cluster_id)
    (unknown,) = await south.admin("home.move", stream="/s", topics=["nothing"])
    assert "there is no topic" in unknown["error"]


async def test_a_home_is_given_to_another_cluster_through_a_link(south: OneNode, north: OneNode) -> None:
    await north.produce("t", b"a")
    await linked(south, north, direction="both", bootstrap=[south.bootstrap])
    await until(lambda: has(south, "t", [b"a"]))
    (moved,) = await north.admin("home.move", stream="/s", to=south.cluster_id)
    assert (moved["moved"], moved["home"]) == (True, south.cluster_id)
    await until(lambda: home_is(north, "t", south))
    await south.produce("t", b"b")
    await until(lambda: has(north, "t", [b"a", b"b"]))


async def test_many_topics_move_together(south: OneNode, north: OneNode) -> None:
    names = [f"t{index}" for index in range(60)]
    for name in names:
        await north.produce(name, b"a")
    await linked(south, north)
    for name in names:
        await until(lambda name=name: has(south, name, [b"a"]))  # type: ignore[misc]
    moved = await south.admin("home.move", stream="/s")
    assert [each["error"] for each in moved] == [None] * 60
    await asyncio.gather(*(south.produce(name, b"b") for name in names))
    for name in names:
        await until(lambda name=name: has(north, name, [b"a", b"b"]))  # type: ignore[misc]


async def grown(cluster: OneNode, name: str, count: int) -> None:
    row = await cluster.row(name)
    assert row is not None
    places = cluster.parts.placement.place(count - row.partitions, "default")
    await cluster.parts.catalog.submit(
        CreatePartitions(
            topic_id=row.topic_id,
            count=count,
            container_ids=[container for container, _ in places],
            container_epochs=[epoch for _, epoch in places],
            now=Millis(0),
        )
    )


@pytest.mark.parametrize("moved_before", [False, True])
async def test_partitions_that_are_new_at_the_home_move_with_it(
    south: OneNode, north: OneNode, monkeypatch: pytest.MonkeyPatch, moved_before: bool
) -> None:
    await north.produce("t", b"a")
    if moved_before:
        await south.produce("elsewhere", b"x")
        (taken,) = await north.admin("home.move", stream="/s", topics=["t"], force=True)
        row = await north.row("t")
        assert row is not None
        change = HomeChange(row.topic_id, 7, north.cluster_id, None)
        assert await north.parts.catalog.submit(SetHome(items=[change])) == [Code.NONE], taken
    await linked(south, north)
    await until(lambda: has(south, "t", [b"a"]))
    demote = HeadraceSource.demote

    async def demotes_what_is_new(self: HeadraceSource, *args: Any, **more: Any) -> Any:
        await paused(south)  # so that nobody follows what is new
        await grown(north, "t", 3)
        await north.produce("t", b"only-there", partition=2)
        return await demote(self, *args, **more)

    monkeypatch.setattr(HeadraceSource, "demote", demotes_what_is_new)
    moving = asyncio.create_task(south.admin("home.move", stream="/s", topics=["t"]))
    await until(lambda: home_is(south, "t", south))
    await south.admin("link.resume", name="l")
    (moved,) = await moving
    assert (moved["moved"], moved["error"]) == (True, None)
    await until(lambda: has(south, "t", [b"only-there"], 2))
    await south.produce("t", b"b", partition=2)
    await until(lambda: has(north, "t", [b"only-there", b"b"], 2))
    assert await south.row("t.diverged") is None


async def test_a_home_taken_by_force_that_had_just_been_given_away_unheard_is_another_home(
    south: OneNode, north: OneNode
) -> None:
    await north.produce("t", b"a")
    await linked(south, north)
    await until(lambda: has(south, "t", [b"a"]))
    await paused(south)
    await north.produce("t", b"lost")
    row = await north.row("t")
    assert row is not None
    demoted = await north.admin("home.cede", version=1, topic_ids=[row.topic_id], to=south.cluster_id)
    assert demoted["topics"][0]["error"] == 0  # and that answer is lost
    (moved,) = await south.admin("home.move", stream="/s", topics=["t"], force=True)
    assert moved["error"] is None
    await south.produce("t", b"b")
    await south.admin("link.resume", name="l")
    await until(lambda: has(north, "t", [b"a", b"b"]))
    await until(lambda: has(north, "t.diverged", [b"lost"]))


async def test_of_two_homes_that_were_given_to_the_same_cluster_the_higher_wins(
    start: StartCluster, south: OneNode, north: OneNode
) -> None:
    west = await start("west")
    await west.admin("stream.create", path="/s")
    await west.produce("t", b"a")
    row = await west.row("t")
    assert row is not None
    given: list[tuple[Home, OneNode, bytes]] = []
    for cluster, value in ((north, b"n"), (south, b"s")):
        await linked(cluster, west)
        await until(lambda cluster=cluster: has(cluster, "t", [b"a"]))  # type: ignore[misc]
        await paused(cluster)
        await cluster.admin("home.move", stream="/s", topics=["t"], force=True)
        await cluster.produce("t", value)
        demoted = await cluster.admin("home.cede", version=1, topic_ids=[row.topic_id], to=west.cluster_id)
        assert demoted["topics"][0]["error"] == 0
        there = await cluster.row("t")
        assert there is not None
        assert there.home is not None
        given.append((there.home, cluster, value))
    (lower, loser, lost), (higher, winner, kept) = sorted(given, key=lambda each: each[0])
    assert lower.cluster == higher.cluster == west.cluster_id
    assert lower != higher
    await linked(west, north, name="n")
    await linked(west, south, name="s")
    await until(lambda: has(west, "t", [b"a", kept]))
    await west.produce("t", b"w")
    for cluster in (north, south):
        await cluster.admin("link.resume", name="l")
    for cluster in (west, north, south):
        await until(lambda cluster=cluster: has(cluster, "t", [b"a", kept, b"w"]))  # type: ignore[misc]
    await until(lambda: has(loser, "t.diverged", [lost]))
    assert await winner.row("t.diverged") is None


async def test_a_copy_that_filled_a_gap_to_where_its_source_begins_is_a_source_itself(
    start: StartCluster, south: OneNode, north: OneNode
) -> None:
    await north.produce("t", b"gone")
    await north.produce("t", b"a")
    row = await north.row("t")
    assert row is not None
    await north.parts.catalog.submit(SetLogStart(items=[LogStart(row.topic_id, 0, Offset(1))]))
    await linked(south, north)
    await until(lambda: has(south, "t", [b"a"]))
    assert (await south.partition("t")).log_start == 1
    leaf = await start("leaf")
    await linked(leaf, south)
    await until(lambda: has(leaf, "t", [b"a"]))
    await north.produce("t", b"b")
    await until(lambda: has(leaf, "t", [b"a", b"b"]))


async def test_whoever_reads_to_the_end_of_a_copy_that_filled_a_gap_comes_there(south: OneNode, north: OneNode) -> None:
    await north.produce("t", b"a")
    await linked(south, north)
    await until(lambda: has(south, "t", [b"a"]))
    await paused(south)
    for value in (b"b", b"c", b"d"):
        await north.produce("t", value)
    row = await north.row("t")
    assert row is not None
    await north.parts.catalog.submit(SetLogStart(items=[LogStart(row.topic_id, 0, Offset(4))]))
    chain = (await south.partition("t")).chain
    await south.admin("link.resume", name="l")
    await until(lambda: caught_up(south))
    copy = await south.partition("t")
    await until(lambda: copy.high_watermark == 4)
    assert (copy.log_start, copy.chain) == (0, chain), "it goes on where it was"
    records, reached = await south.read("t")
    assert ([record.value for record in records], reached) == ([b"a"], 4)
    await north.produce("t", b"e")
    await until(lambda: has(south, "t", [b"a", b"e"]))


async def filled_gap(cluster: OneNode, name: str, offset: int) -> None:
    leader = await cluster.partition(name)
    row = await cluster.row(name)
    assert row is not None
    await cluster.parts.rolls.apply_home(leader, row.home or Home(0, cluster.cluster_id), offset)


async def test_a_home_that_ends_in_a_gap_moves(start: StartCluster, south: OneNode, north: OneNode) -> None:
    for value in (b"a", b"b", b"c", b"d"):
        await north.produce("t", value)
    await linked(south, north)
    await until(lambda: has(south, "t", [b"a", b"b", b"c", b"d"]))
    await filled_gap(north, "t", 9)  # as where records behind these were cut, or expired elsewhere
    await until(lambda: caught_up(south))
    (moved,) = await south.admin("home.move", stream="/s", topics=["t"])
    assert (moved["moved"], moved["error"]) == (True, None)
    await south.produce("t", b"e")
    assert [record.offset for record in await south.records("t")] == [0, 1, 2, 3, 9]
    await until(lambda: has(north, "t", [b"a", b"b", b"c", b"d", b"e"]))
    assert await south.row("t.diverged") is None
    assert await north.row("t.diverged") is None


async def caught_up(cluster: OneNode) -> bool:
    shown = await cluster.admin("link.show", name="l")
    return bool(shown["state"] == "CaughtUp" and shown["lag_records"] == 0)
