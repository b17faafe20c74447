"""The client under both loops: nodes run on uvloop, tools may use it on asyncio's own."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

from kit.certificates import certificates

__all__ = ["certificates"]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The other tests here need one alone."""
    both: Mapping[str, Callable[[], asyncio.AbstractEventLoop]] = {
        "uvloop": uvloop.new_event_loop,
        "asyncio": asyncio.new_event_loop,
    }
    return both if item.path.name == "test_client.py" else {"uvloop": uvloop.new_event_loop}
