"""Lets the tests of links share the modules beside them, and `bench`'s servers; runs the client's under both loops."""

import asyncio
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import uvloop

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[3])]

if TYPE_CHECKING:
    from certificates import Certificates

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, LoopFactory]:
    """Nodes run on uvloop; tools may use the client on asyncio's own loop."""
    both: Mapping[str, LoopFactory] = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
    return both if item.path.name == "test_client.py" else {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> "Certificates":
    """An authority, a server on loopback, a stranger, a client."""
    from certificates import make

    return make(tmp_path_factory.mktemp("certificates"))
