"""A link's status: lost and found sources, refused topics, moved homes, and figures."""

import pytest

from headrace_operator.kinds import link as links
from headrace_operator.kinds.link_status import Homes, judge, moved, turns

from ..fake_api import Object
from ..fake_cluster import World
from .test_link import LINK, declared, status, the_link


async def test_a_lost_source_is_told_once_and_so_is_its_return(world: World) -> None:
    key = declared(world)
    await world.run(key)
    the_link(world).update(state="Connecting", since_ms=0, last_error="north:9092 cannot be reached")
    for _ in range(3):
        await world.once(key)
    assert world.condition("ReplicationLink", "l", "Connected")[1] == "SourceSilent"
    assert world.condition("ReplicationLink", "l")[2] == "north:9092 cannot be reached"
    assert world.condition("ReplicationLink", "l", "CaughtUp")[0] == "Unknown"
    the_link(world).update(state="CatchingUp", lag_seconds=40.0, lag_records=10)
    for _ in range(3):
        await world.once(key)
    assert world.condition("ReplicationLink", "l")[0] == "True"
    assert world.condition("ReplicationLink", "l", "CaughtUp")[:2] == ("False", "CatchingUp")
    assert [each for each in world.events() if each.startswith("Source")] == ["SourceLost", "SourceConnected"]


async def test_topics_that_are_refused_are_named(world: World) -> None:
    key = declared(world)
    await world.run(key)
    reason = "it has another id here: `headrace link adopt`"
    the_link(world)["refused"] = [{"topic": f"t{number}", "reason": reason} for number in range(30)]
    for _ in range(2):
        await world.once(key)
    state, why, message = world.condition("ReplicationLink", "l")
    assert (state, why) == ("False", "TopicsRefused")
    assert "t0: it has another id" in message
    assert "27 more" in message
    assert (status(world)["refusedTopics"], len(status(world)["refused"])) == (30, 20)
    assert world.events().count("TopicsRefused") == 1


async def test_records_that_diverged_are_told_and_are_no_failure(world: World) -> None:
    key = declared(world)
    await world.run(key)
    aside = {"topic": "pump", "into": "/plant:pump.diverged"}
    the_link(world)["diverged"] = [{**aside, "partition": 0, "records": 3}, {**aside, "partition": 1, "records": 4}]
    for _ in range(2):
        await world.once(key)
    assert world.condition("ReplicationLink", "l")[0] == "True"
    assert "7 of pump in /plant:pump.diverged" in world.condition("ReplicationLink", "l", "NothingDiverged")[2]
    assert status(world)["divergedRecords"] == 7
    assert world.events().count("RecordsDiverged") == 1


async def test_figures_are_shown_by_topic_group(world: World) -> None:
    key = declared(world, topics=["a-*", "b"])
    await world.run(key)
    lag = {"records": 5, "bytes": 500, "seconds": 1.5, "partitions": 2}
    the_link(world).update(lag_records=5, lag_bytes=500, lag_seconds=1.5, groups={"a-*": lag})
    the_link(world).update(last_error="a moment ago", last_error_ms=1_700_000_000_000)
    world.start_operator()
    await world.once(key)
    shown = status(world)
    assert (shown["lagRecords"], shown["lagBytes"], shown["lagSeconds"]) == (5, 500, 1.5)
    assert [(each["topics"], each["lagRecords"]) for each in shown["groups"]] == [("a-*", 5), ("b", 0)]
    assert (shown["lastError"], shown["lastErrorAt"]) == ("a moment ago", "2023-11-14T22:13:20Z")
    before = len(world.api.writes)
    the_link(world)["lag_records"] = 6
    await world.once(key)
    assert len(world.api.writes) == before, "figures alone are written once a minute"


async def test_homes_that_move_are_told(world: World) -> None:
    key = declared(world)
    world.cluster.homes = [{"home": [0, "north"]}, {"home": [0, "north"]}]
    await world.run(key)
    assert status(world)["topicsAtHome"] == 0
    world.cluster.homes = [{"home": [1, "own"]}, {"home": [1, "own"]}]
    for _ in range(2):
        await world.once(key)
    assert world.events().count("HomeMoved") == 1


async def test_the_home_of_a_topic_that_had_not_been_seen_yet_has_moved_too(world: World) -> None:
    key = declared(world)
    world.cluster.homes = [{"home": [0, "north"]}, {"home": [0, "own"]}]
    await world.run(key)
    world.cluster.homes += [{"home": [0, "own"]}, {"home": [3, "north"]}]
    await world.once(key)
    assert "HomeMoved" not in world.events(), "one was made here, and one was copied that had moved elsewhere"
    world.cluster.homes += [{"home": [2, "own"]}]
    for _ in range(2):
        await world.once(key)
    assert world.events().count("HomeMoved") == 1


def test_topics_that_are_made_or_deleted_move_no_home() -> None:
    assert moved(Homes(1, 2), Homes(1, 5), "/plant") is None
    assert moved(Homes(1, 2), Homes(0, 2), "/plant") is None
    assert moved(Homes(2, 3), Homes(0, 5), "/plant") is not None


async def test_what_is_remembered_of_links_that_are_gone_is_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "ROOM", 3)
    for number in range(12):
        name = f"l{number}"
        await world.run(world.declare("ReplicationLink", name, {**LINK, "reclaimPolicy": "Retain"}))
        world.api.remove("ReplicationLink", name)
    reconciler: links.Links = world.reconcilers["ReplicationLink"].__self__  # type: ignore[attr-defined]
    assert len(reconciler._sent) <= 3 + 2
    assert len(reconciler._homes) <= 3 + 2


def test_a_node_that_starts_anew_is_no_lost_source_and_a_moment_behind_is_not_behind() -> None:
    shown: Object = {"state": "Connecting", "since_ms": 95_000, "last_error": None}
    before = {
        "conditions": [
            {"type": "Connected", "status": "True", "reason": "Answers", "message": ""},
            {"type": "CaughtUp", "status": "True", "reason": "CaughtUp", "message": ""},
        ]
    }
    found = {each.type: each for each in judge(shown, before, now=100.0)}
    assert found["Connected"].ok
    assert found["CaughtUp"].ok
    assert turns(before, list(found.values()), "/plant") == []
    assert {each.type: each.ok for each in judge(shown, before, now=110.0)}["Connected"] is None
    assert {each.type: each.ok for each in judge(shown, {}, now=100.0)}["Connected"] is None
    behind = {**shown, "state": "CatchingUp", "lag_seconds": 5.0}
    assert {each.type: each.ok for each in judge(behind, before, now=1.0)}["CaughtUp"]
    assert not {each.type: each.ok for each in judge(behind, {}, now=1.0)}["CaughtUp"]
