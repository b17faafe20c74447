"""The client under both loops: nodes run on uvloop, tools may use it on asyncio's own."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

from kit.certificates import certificates
from kit.client_calls import connect

__all__ = ["certificates", "connect"]

CLIENT_TESTS = ("test_client.py", "test_connection.py", "test_connection_setup.py")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The other tests of this package need one loop only."""
    both: Mapping[str, Callable[[], asyncio.AbstractEventLoop]] = {
        "uvloop": uvloop.new_event_loop,
        "asyncio": asyncio.new_event_loop,
    }
    return both if item.path.name in CLIENT_TESTS else {"uvloop": uvloop.new_event_loop}
