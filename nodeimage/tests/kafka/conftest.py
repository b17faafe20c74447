"""A whole node inside the test's own loop."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

from headrace.node.parts import NodeParts
from kit.group_calls import orders
from kit.parts import append, ask, broker, node
from kit.secured_node import SecuredNode

__all__ = ["append", "ask", "broker", "node", "orders"]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """TLS is the loop's own, so its tests have the one that nodes run on."""
    if item.path.name == "test_tls.py":
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture
async def secured(broker: NodeParts) -> SecuredNode:
    """A node whose security is on."""
    found = SecuredNode(broker)
    await found.secure()
    return found
