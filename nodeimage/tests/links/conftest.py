"""Lets the tests of links share the modules beside them, and runs the client's under both loops."""

import asyncio
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import uvloop

sys.path.insert(0, str(Path(__file__).parent))

import certificates as certificates_of

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, LoopFactory]:
    """Nodes run on uvloop; tools may use the client on asyncio's own loop."""
    both: Mapping[str, LoopFactory] = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
    return both if item.path.name == "test_client.py" else {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> certificates_of.Certificates:
    """An authority, a server on loopback, a stranger, a client."""
    return certificates_of.make(tmp_path_factory.mktemp("certificates"))
