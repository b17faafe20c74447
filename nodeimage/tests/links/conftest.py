"""Certificates for the tests of links; their nodes run on uvloop."""

import asyncio
from collections.abc import Callable, Mapping

import uvloop

from kit.certificates import certificates

__all__ = ["certificates"]


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """As nodes have it."""
    return {"uvloop": uvloop.new_event_loop}
