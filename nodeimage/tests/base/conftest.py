"""TLS handshakes run on both event loops: nodes run on uvloop, tools may use asyncio's own."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """All other tests of this package need only asyncio's loop."""
    found: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    return found | {"uvloop": uvloop.new_event_loop} if item.path.name == "test_tls_handshakes.py" else found
