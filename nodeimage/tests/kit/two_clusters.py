"""Two clusters of one node each, and a link between them."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.base.ids import Home, Millis
from headrace.catalog.topics import CreatePartitions
from headrace.links.pull.link_state import Phase
from kit.one_node import OneNode, until

StartCluster = Callable[[str], Awaitable[OneNode]]


@pytest.fixture
async def north_cluster(start_cluster: StartCluster) -> OneNode:
    """Another cluster, with a stream /s."""
    node = await start_cluster("north")
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
    """Pause the link; from now on nothing more is pulled over it."""
    await cluster.admin("link.pause", name="l")
    puller = cluster.node.links.pullers.puller("l")
    assert puller is not None
    await until(lambda: puller.state.phase is Phase.PAUSED)


async def home_is(cluster: OneNode, name: str, home: OneNode) -> bool:
    row = await cluster.row(name)
    return row is not None and row.home is not None and row.home.cluster == home.cluster_id


async def at(cluster: OneNode, offset: int) -> bool:
    """Whether the committed offset of group `g` in topic `t` exists."""
    return await cluster.committed_offset("g", "t") == offset


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


async def filled_gap(cluster: OneNode, name: str, offset: int) -> None:
    leader = await cluster.partition(name)
    row = await cluster.row(name)
    assert row is not None
    await cluster.parts.rolls.apply_home(leader, row.home or Home(0, cluster.cluster_id), offset)


async def caught_up(cluster: OneNode) -> bool:
    shown = await cluster.admin("link.show", name="l")
    return bool(shown["state"] == "CaughtUp" and shown["lag_records"] == 0)
