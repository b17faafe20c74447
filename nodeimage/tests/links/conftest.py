"""Certificates for the tests of links; their nodes run on uvloop."""

import asyncio
from collections.abc import Callable, Mapping

import uvloop

from kit.certificates import certificates
from kit.linked_nodes import schemas, south, start_cluster
from kit.two_clusters import north_cluster

__all__ = ["certificates", "north_cluster", "schemas", "south", "start_cluster"]


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """As nodes have it."""
    return {"uvloop": uvloop.new_event_loop}
