"""Runs the client's tests under both loops."""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import pytest
import uvloop

if TYPE_CHECKING:
    from kit.certificates import Certificates

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, LoopFactory]:
    """Nodes run on uvloop; tools may use the client on asyncio's own loop."""
    both: Mapping[str, LoopFactory] = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
    return both if item.path.name == "test_client.py" else {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> "Certificates":
    """An authority, a server on loopback, a stranger, a client."""
    from kit.certificates import make

    return make(tmp_path_factory.mktemp("certificates"))
