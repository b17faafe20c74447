"""Two clusters, and the links between them: copies, failover, failback, both ways, clashes."""

import asyncio
from typing import Any

import pytest

from headrace.base.errors import Code, KafkaError
from headrace.base.ids import Home, Millis, Offset
from headrace.catalog.chains import LogStart, SetLogStart
from headrace.catalog.homes import HomeChange, SetHome
from headrace.catalog.topics import DeleteTopics
from headrace.kafka_client.errors import SourceUnreachable
from headrace.links.failover import failover
from headrace.links.failover.failover import Failover
from headrace.links.source.headrace_source import HeadraceSource
from headrace.links.topics.topic_apply import TopicApplier
from kit.one_node import OneNode, until
from kit.two_clusters import StartCluster, caught_up, filled_gap, grown, has, home_is, linked, paused


async def test_a_copy_takes_no_writes_and_names_its_home(south: OneNode, north_cluster: OneNode) -> None:
    await north_cluster.produce("t", b"a")
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a"]))
    with pytest.raises(KafkaError, match=rf"{north_cluster.cluster_id} \({north_cluster.bootstrap}\)") as caught:
        await south.produce("t", b"mine")
    assert caught.value.code is Code.POLICY_VIOLATION


async def test_an_agreed_move_loses_nothing_and_the_old_home_follows(south: OneNode, north_cluster: OneNode) -> None:
    await north_cluster.produce("t", b"a", b"b")
    await linked(south, north_cluster)
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
        await north_cluster.produce("t", b"d")
    await until(lambda: has(north_cluster, "t", [b"a", b"b", b"c"]))
    (again,) = await south.admin("home.move", stream="/s")
    assert (again["moved"], again["error"]) == (False, None)
    # And back, over the link that the announcement created.
    (back,) = await north_cluster.admin("home.move", stream="/s", topics=["t"])
    assert (back["moved"], back["error"], back["counter"]) == (True, None, 2)
    await north_cluster.produce("t", b"e")
    await until(lambda: has(south, "t", [b"a", b"b", b"c", b"e"]))
    assert await south.row("t.diverged") is None
    assert await north_cluster.row("t.diverged") is None


async def test_a_former_home_whose_own_link_leaves_the_topic_out_follows_and_takes_it_back(
    south: OneNode, north_cluster: OneNode
) -> None:
    await north_cluster.produce("t", b"a")
    await south.produce("south-1", b"x")
    await linked(south, north_cluster)
    await linked(north_cluster, south, name="some", topics=["south-*"])
    await until(lambda: has(south, "t", [b"a"]))
    await until(lambda: has(north_cluster, "south-1", [b"x"]))
    (moved,) = await south.admin("home.move", stream="/s", topics=["t"])
    assert (moved["moved"], moved["error"]) == (True, None)
    await south.produce("t", b"b")
    await until(lambda: has(north_cluster, "t", [b"a", b"b"]))
    (back,) = await north_cluster.admin("home.move", stream="/s", topics=["t"])
    assert (back["moved"], back["error"]) == (True, None)
    await north_cluster.produce("t", b"c")
    await until(lambda: has(south, "t", [b"a", b"b", b"c"]))


async def test_a_home_that_no_running_link_copies_from_is_not_asked_to_demote(
    south: OneNode, north_cluster: OneNode
) -> None:
    await north_cluster.produce("t", b"a")
    await north_cluster.produce("u", b"a")
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a"]))
    await until(lambda: has(south, "u", [b"a"]))
    await south.admin("link.alter", name="l", topics=["u"])
    await south.admin("link.pause", name="l")
    moved = await south.admin("home.move", stream="/s")
    told = {each["topic"]: each["error"] for each in moved if not each["moved"]}
    assert "no link of /s copies it" in told["/s:t"]
    assert "link l, which copies it from its home, is paused" in told["/s:u"]
    for name in ("t", "u"):
        await north_cluster.produce(name, b"b")
    await south.admin("link.resume", name="l")
    moved = await south.admin("home.move", stream="/s")
    assert {each["topic"]: each["moved"] for each in moved} == {"/s:t": False, "/s:u": True}


async def test_a_home_that_moves_on_while_it_is_moved_here_is_not_taken(
    south: OneNode, north_cluster: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await north_cluster.produce("t", b"a")
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a"]))
    demote = Failover._demote

    async def then_it_is_taken_back(failover: Failover, *args: Any) -> Any:
        found = await demote(failover, *args)
        await north_cluster.admin("home.move", stream="/s", topics=["t"], force=True)
        await north_cluster.produce("t", b"b")
        return found

    monkeypatch.setattr(Failover, "_demote", then_it_is_taken_back)
    (moved,) = await south.admin("home.move", stream="/s", topics=["t"])
    assert not moved["moved"]
    assert f"has moved on to cluster {north_cluster.cluster_id}" in moved["error"]
    await until(lambda: has(south, "t", [b"a", b"b"]))
    assert await home_is(south, "t", north_cluster)
    assert await home_is(north_cluster, "t", north_cluster)
    assert await north_cluster.row("t.diverged") is None


async def test_a_home_that_was_given_is_taken_up_though_its_source_is_away_for_a_moment(
    south: OneNode, north_cluster: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await north_cluster.produce("t", b"a")
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a"]))
    apply_homes, away = TopicApplier.apply_homes, [True]

    async def away_once(*args: Any) -> Any:
        if away.pop() if away else False:
            raise SourceUnreachable("away")
        return await apply_homes(*args)

    async def never(*_args: Any, **_more: Any) -> Any:  # stops the topic syncer, which would find the home too
        raise SourceUnreachable("away")

    monkeypatch.setattr(TopicApplier, "carry_out", never)
    monkeypatch.setattr(TopicApplier, "apply_homes", away_once)
    (moved,) = await south.admin("home.move", stream="/s", topics=["t"])
    assert (moved["moved"], moved["home"], moved["error"]) == (True, south.cluster_id, None)
    assert await home_is(south, "t", south)
    assert not away


async def test_a_home_that_is_deleted_while_it_is_moved_here_is_not_reported_as_moved(
    south: OneNode, north_cluster: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await north_cluster.produce("t", b"a")
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a"]))
    demote = Failover._demote

    async def then_it_is_deleted(failover: Failover, *args: Any) -> Any:
        found = await demote(failover, *args)
        row = await north_cluster.row("t")
        assert row is not None
        await north_cluster.parts.catalog.submit(DeleteTopics(topic_ids=[row.topic_id], now=Millis(0)))
        return found

    monkeypatch.setattr(Failover, "_demote", then_it_is_deleted)
    (moved,) = await south.admin("home.move", stream="/s", topics=["t"])
    assert (moved["moved"], moved["error"]) == (False, "its former home has deleted it; take the home with --force")


async def test_homes_on_both_sides_of_a_link_in_both_directions(south: OneNode, north_cluster: OneNode) -> None:
    await north_cluster.produce("of-north", b"n")
    await south.produce("of-south", b"s")
    await linked(south, north_cluster, direction="both", bootstrap=[south.bootstrap])
    await until(lambda: has(south, "of-north", [b"n"]))
    await until(lambda: has(north_cluster, "of-south", [b"s"]))
    assert [each["name"] for each in await north_cluster.admin("link.list")] == ["l"]
    await linked(south, north_cluster, direction="both", bootstrap=[south.bootstrap], if_not_exists=True)
    await north_cluster.produce("of-north", b"n2")
    await south.produce("of-south", b"s2")
    await until(lambda: has(south, "of-north", [b"n", b"n2"]))
    await until(lambda: has(north_cluster, "of-south", [b"s", b"s2"]))
    await south.admin("link.alter", name="l", topics=["of-*"])
    assert (await north_cluster.admin("link.show", name="l"))["topics"] == ["of-*"]
    await north_cluster.admin("link.delete", name="l")
    with pytest.raises(KafkaError, match="no link was made or changed: there is no link"):
        await south.admin("link.alter", name="l", topics=["*"])
    assert (await south.admin("link.show", name="l"))["topics"] == ["of-*"]


async def test_a_home_is_given_to_another_cluster_through_a_link(south: OneNode, north_cluster: OneNode) -> None:
    await north_cluster.produce("t", b"a")
    await linked(south, north_cluster, direction="both", bootstrap=[south.bootstrap])
    await until(lambda: has(south, "t", [b"a"]))
    (moved,) = await north_cluster.admin("home.move", stream="/s", to=south.cluster_id)
    assert (moved["moved"], moved["home"]) == (True, south.cluster_id)
    await until(lambda: home_is(north_cluster, "t", south))
    await south.produce("t", b"b")
    await until(lambda: has(north_cluster, "t", [b"a", b"b"]))


async def test_many_topics_move_together(south: OneNode, north_cluster: OneNode) -> None:
    names = [f"t{index}" for index in range(60)]
    for name in names:
        await north_cluster.produce(name, b"a")
    await linked(south, north_cluster)
    for name in names:
        await until(lambda name=name: has(south, name, [b"a"]))  # type: ignore[misc]
    moved = await south.admin("home.move", stream="/s")
    assert [each["error"] for each in moved] == [None] * 60
    await asyncio.gather(*(south.produce(name, b"b") for name in names))
    for name in names:
        await until(lambda name=name: has(north_cluster, name, [b"a", b"b"]))  # type: ignore[misc]


@pytest.mark.parametrize("moved_before", [False, True])
async def test_partitions_that_are_new_at_the_home_move_with_it(
    south: OneNode, north_cluster: OneNode, monkeypatch: pytest.MonkeyPatch, moved_before: bool
) -> None:
    await north_cluster.produce("t", b"a")
    if moved_before:
        await south.produce("elsewhere", b"x")
        (taken,) = await north_cluster.admin("home.move", stream="/s", topics=["t"], force=True)
        row = await north_cluster.row("t")
        assert row is not None
        change = HomeChange(row.topic_id, 7, north_cluster.cluster_id, None)
        assert await north_cluster.parts.catalog.submit(SetHome(items=[change])) == [Code.NONE], taken
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a"]))
    demote = HeadraceSource.demote

    async def demotes_what_is_new(self: HeadraceSource, *args: Any, **more: Any) -> Any:
        await paused(south)  # so that nothing copies the new records
        await grown(north_cluster, "t", 3)
        await north_cluster.produce("t", b"only-there", partition=2)
        return await demote(self, *args, **more)

    monkeypatch.setattr(HeadraceSource, "demote", demotes_what_is_new)
    moving = asyncio.create_task(south.admin("home.move", stream="/s", topics=["t"]))
    await until(lambda: home_is(south, "t", south))
    await south.admin("link.resume", name="l")
    (moved,) = await moving
    assert (moved["moved"], moved["error"]) == (True, None)
    await until(lambda: has(south, "t", [b"only-there"], 2))
    await south.produce("t", b"b", partition=2)
    await until(lambda: has(north_cluster, "t", [b"only-there", b"b"], 2))
    assert await south.row("t.diverged") is None


async def test_a_home_taken_by_force_that_had_just_been_given_away_unheard_is_another_home(
    south: OneNode, north_cluster: OneNode
) -> None:
    await north_cluster.produce("t", b"a")
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a"]))
    await paused(south)
    await north_cluster.produce("t", b"lost")
    row = await north_cluster.row("t")
    assert row is not None
    demoted = await north_cluster.admin("home.cede", version=1, topic_ids=[row.topic_id], to=south.cluster_id)
    assert demoted["topics"][0]["error"] == 0  # this answer is lost
    (moved,) = await south.admin("home.move", stream="/s", topics=["t"], force=True)
    assert moved["error"] is None
    await south.produce("t", b"b")
    await south.admin("link.resume", name="l")
    await until(lambda: has(north_cluster, "t", [b"a", b"b"]))
    await until(lambda: has(north_cluster, "t.diverged", [b"lost"]))


async def test_a_home_that_changes_while_it_is_taken_by_force_is_told_as_that(
    south: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while its partitions are not settled for the home that it has now."""
    await south.append("t", b"a")
    row = await south.row("t")
    assert row is not None
    submit = south.parts.catalog.submit

    async def late(command: Any) -> Any:
        if isinstance(command, SetHome):
            await submit(SetHome(items=[HomeChange(row.topic_id, 1 << 60, "east", None)]))
        return await submit(command)

    async def unapplied(_: Any) -> None:
        pass

    await submit(SetHome(items=[HomeChange(row.topic_id, 1, "north", None)]))
    monkeypatch.setattr(south.node.links.home_applier, "_apply_home", unapplied)
    monkeypatch.setattr(south.parts.catalog, "submit", late)
    monkeypatch.setattr(failover, "APPLY_WAIT_S", 0.1)
    (answer,) = await south.admin("home.move", stream="/s", topics=["t"], force=True)
    assert (answer["moved"], answer["error"][:26]) == (False, "its home has just changed:")


async def test_of_two_homes_that_were_given_to_the_same_cluster_the_higher_wins(
    start_cluster: StartCluster, south: OneNode, north_cluster: OneNode
) -> None:
    west = await start_cluster("west")
    await west.admin("stream.create", path="/s")
    await west.produce("t", b"a")
    row = await west.row("t")
    assert row is not None
    given: list[tuple[Home, OneNode, bytes]] = []
    for cluster, value in ((north_cluster, b"n"), (south, b"s")):
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
    await linked(west, north_cluster, name="n")
    await linked(west, south, name="s")
    await until(lambda: has(west, "t", [b"a", kept]))
    await west.produce("t", b"w")
    for cluster in (north_cluster, south):
        await cluster.admin("link.resume", name="l")
    for cluster in (west, north_cluster, south):
        await until(lambda cluster=cluster: has(cluster, "t", [b"a", kept, b"w"]))  # type: ignore[misc]
    await until(lambda: has(loser, "t.diverged", [lost]))
    assert await winner.row("t.diverged") is None


async def test_a_copy_that_filled_a_gap_to_where_its_source_begins_is_a_source_itself(
    start_cluster: StartCluster, south: OneNode, north_cluster: OneNode
) -> None:
    await north_cluster.produce("t", b"gone")
    await north_cluster.produce("t", b"a")
    row = await north_cluster.row("t")
    assert row is not None
    await north_cluster.parts.catalog.submit(SetLogStart(items=[LogStart(row.topic_id, 0, Offset(1))]))
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a"]))
    assert (await south.partition("t")).log_start == 1
    leaf = await start_cluster("leaf")
    await linked(leaf, south)
    await until(lambda: has(leaf, "t", [b"a"]))
    await north_cluster.produce("t", b"b")
    await until(lambda: has(leaf, "t", [b"a", b"b"]))


async def test_whoever_reads_to_the_end_of_a_copy_that_filled_a_gap_comes_there(
    south: OneNode, north_cluster: OneNode
) -> None:
    await north_cluster.produce("t", b"a")
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a"]))
    await paused(south)
    for value in (b"b", b"c", b"d"):
        await north_cluster.produce("t", value)
    row = await north_cluster.row("t")
    assert row is not None
    await north_cluster.parts.catalog.submit(SetLogStart(items=[LogStart(row.topic_id, 0, Offset(4))]))
    chain = (await south.partition("t")).chain
    await south.admin("link.resume", name="l")
    await until(lambda: caught_up(south))
    copy = await south.partition("t")
    await until(lambda: copy.high_watermark == 4)
    assert (copy.log_start, copy.chain) == (0, chain), "it goes on where it was"
    records, reached = await south.read("t")
    assert ([record.value for record in records], reached) == ([b"a"], 4)
    await north_cluster.produce("t", b"e")
    await until(lambda: has(south, "t", [b"a", b"e"]))


async def test_a_home_that_ends_in_a_gap_moves(
    start_cluster: StartCluster, south: OneNode, north_cluster: OneNode
) -> None:
    for value in (b"a", b"b", b"c", b"d"):
        await north_cluster.produce("t", value)
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a", b"b", b"c", b"d"]))
    await filled_gap(north_cluster, "t", 9)  # as if later records were cut, or had expired elsewhere
    await until(lambda: caught_up(south))
    (moved,) = await south.admin("home.move", stream="/s", topics=["t"])
    assert (moved["moved"], moved["error"]) == (True, None)
    await south.produce("t", b"e")
    assert [record.offset for record in await south.records("t")] == [0, 1, 2, 3, 9]
    await until(lambda: has(north_cluster, "t", [b"a", b"b", b"c", b"d", b"e"]))
    assert await south.row("t.diverged") is None
    assert await north_cluster.row("t.diverged") is None
