"""Records that only a former home had are quarantined, and counted."""

import asyncio
from typing import Any

import pytest

from headrace.links.failover.quarantine import Quarantine
from kit.one_node import OneNode, until
from kit.two_clusters import has, home_is, linked, paused


async def test_a_forced_move_sets_aside_what_only_the_old_home_had(south: OneNode, north_cluster: OneNode) -> None:
    await north_cluster.produce("t", b"a", b"b")
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a", b"b"]))
    await paused(south)
    await north_cluster.produce("t", b"lost-1")
    await north_cluster.produce("t", b"lost-2")
    (moved,) = await south.admin("home.move", stream="/s", topics=["t"], force=True)
    assert (moved["moved"], moved["home"], moved["error"]) == (True, south.cluster_id, None)
    assert moved["not_replicated"] is None, "a link that is paused does not hear what the home has"
    await south.produce("t", b"c")
    await south.admin("link.resume", name="l")
    await until(lambda: has(north_cluster, "t", [b"a", b"b", b"c"]))
    await until(lambda: has(north_cluster, "t.diverged", [b"lost-1", b"lost-2"]))
    assert [dict(each.headers)["headrace.offset"] for each in await north_cluster.records("t.diverged")] == [b"2", b"3"]
    (back,) = [each["name"] for each in await north_cluster.admin("link.list")]
    shown = await north_cluster.admin("link.show", name=back)
    assert shown["diverged"] == [{"topic": "t", "partition": 0, "records": 2, "into": "/s:t.diverged"}]
    (home,) = await north_cluster.admin("home.move", stream="/s", topics=["t"])
    assert home["moved"], home
    await north_cluster.produce("t", b"d")
    await until(lambda: has(south, "t", [b"a", b"b", b"c", b"d"]))
    assert await has(north_cluster, "t.diverged", [b"lost-1", b"lost-2"])


async def test_a_link_has_not_caught_up_while_records_are_set_aside(
    south: OneNode, north_cluster: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await north_cluster.produce("t", b"a")
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a"]))
    await paused(south)
    await north_cluster.produce("t", b"lost")
    keep, going_on = Quarantine.add, asyncio.Event()

    async def waits(*args: Any, **more: Any) -> Any:
        await going_on.wait()
        return await keep(*args, **more)

    monkeypatch.setattr(Quarantine, "add", waits)
    await south.admin("home.move", stream="/s", topics=["t"], force=True)
    await south.admin("link.resume", name="l")

    async def states() -> set[str]:
        return {each["state"] for each in await north_cluster.admin("link.list")}

    async def follows() -> bool:
        return await home_is(north_cluster, "t", south) and bool(await states())

    await until(follows)
    for _ in range(20):
        assert await states() <= {"Connecting", "CatchingUp"}
        await asyncio.sleep(0.02)
    going_on.set()

    async def caught_up() -> bool:
        return await states() == {"CaughtUp"}

    await until(caught_up)
    assert await has(north_cluster, "t.diverged", [b"lost"])


async def test_a_forced_move_tells_how_many_records_are_known_to_lack(south: OneNode, north_cluster: OneNode) -> None:
    await north_cluster.produce("t", b"a")
    await north_cluster.produce("whole", b"a")
    await linked(south, north_cluster)
    await until(lambda: has(south, "t", [b"a"]))
    await until(lambda: has(south, "whole", [b"a"]))
    await south.admin("link.alter", name="l", throttle=1024)

    def is_throttled() -> bool:
        puller = south.node.links.pullers.puller("l")
        return puller is not None and puller.state.fetching.byte_rate.rate == 1024

    await until(is_throttled)
    big = b"x" * 100_000
    await north_cluster.produce("t", big, b"y")  # uses up the throttle's burst, and more
    await until(lambda: has(south, "t", [b"a", big, b"y"]))
    await north_cluster.produce("t", b"c", b"d")

    async def lag() -> bool:
        heard = south.node.links.own_reports(["l"])["l"].heard
        return heard and bool((await south.admin("link.show", name="l"))["lag_records"] == 2)

    await until(lag)
    moved = {each["topic"]: each for each in await south.admin("home.move", stream="/s", force=True)}
    assert (moved["/s:t"]["not_replicated"], moved["/s:whole"]["not_replicated"]) == (2, 0)
