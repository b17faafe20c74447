"""A whole node inside the test's own loop."""

import pytest

from headrace.node.parts import NodeParts
from kit.group_calls import orders
from kit.parts import append, ask, broker, node
from kit.secured_node import SecuredNode

__all__ = ["append", "ask", "broker", "node", "orders"]


@pytest.fixture
async def secured(broker: NodeParts) -> SecuredNode:
    """A node with security on."""
    found = SecuredNode(broker)
    await found.secure()
    return found
