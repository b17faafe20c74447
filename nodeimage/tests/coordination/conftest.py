"""Coordinators of groups driven by the test, and a whole node for take-over."""

import pytest

from kit.group_machine import Machine
from kit.parts import append, ask, broker, node
from kit.three_nodes import brokers, nodes, topic, unmoved

__all__ = ["append", "ask", "broker", "brokers", "node", "nodes", "topic", "unmoved"]


@pytest.fixture
def machine() -> Machine:
    """A coordinator whose catalog stores at once."""
    return Machine()


@pytest.fixture
def slow_catalog() -> Machine:
    """A coordinator whose catalog stores when told to."""
    return Machine(stores=False)
