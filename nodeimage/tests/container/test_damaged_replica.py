"""A replica that cannot read all of its data leaves the in-sync set before it is replaced."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace.container.damaged_replica import Damage
from headrace.store.protocol import ClusterStore, StoreUnavailable
from kit.several_replicas import Several, until


async def test_a_damaged_leader_that_could_not_say_so_is_in_touch_again_once_it_is_alone(
    three: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 16: not earlier, because a put that the store did not answer may still make another node leader."""
    container_id = await three.create(replicas=2, min_in_sync=1)
    container = await three.led(container_id)
    await until(lambda: container.in_touch or None)
    node, store, failed = three.nodes[0], three.nodes[0].store, asyncio.Event()

    async def away(_change: Callable[[ClusterStore], Any]) -> Any:
        failed.set()
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(node, "store", away)
    node.replicas.damaged(container_id)
    await failed.wait()
    assert container.handing_over
    await three.nodes[1].stop()
    loop = asyncio.get_running_loop()
    await until(lambda: None if container.state.near(loop.time()) else True)
    damage = Damage()
    damage.found(container.member.incarnation)
    assert not await damage.leave(away, container_id, node.node_id, container, known=None)
    assert container.handing_over
    monkeypatch.setattr(node, "store", store)
    await until(lambda: container.in_touch or None)
    assert not container.lost
