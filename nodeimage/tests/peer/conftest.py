"""The nodes of a cluster on loopback, on both event loops."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, MutableMapping
from typing import Any

import pytest
import structlog
import uvloop

from kit.peer import Nodes


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Each test of this package runs on both event loops."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    made = Nodes()
    yield made
    await made.close()


@pytest.fixture
def lines() -> Iterator[list[MutableMapping[str, Any]]]:
    """The lines that are logged during a test."""
    with structlog.testing.capture_logs() as captured:
        yield captured
