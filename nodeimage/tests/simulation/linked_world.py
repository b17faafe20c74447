"""Replacements, for a run, of what links call on their own, in addition to those in world.py."""

import random
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from headrace.catalog.queries.streams import StreamQueries
from headrace.kafka_client.connection import Connection
from headrace.links.pull.puller import Puller
from headrace.links.serving.change_feed import _Subscribed as ChangesSubscribed
from headrace.links.source.headrace_source import HeadraceSource
from headrace.wire import generic_codec
from headrace.wire.api_keys import ApiKey
from simulation.loop import PROCESS
from simulation.world import LONG_TTL_S, expire_after

if TYPE_CHECKING:
    from simulation.linked import World


class _Randoms:
    """A replacement for the module `random` in links."""

    def __init__(self, seeded: random.Random) -> None:
        self._seeded = seeded

    def Random(self) -> random.Random:
        return self._seeded


@contextmanager
def linked(world: "World") -> Iterator[None]:
    """Replace, for a run, what links call on their own, and count what they fetch."""
    seeded = random.Random(world.seed + 11)
    fetch = HeadraceSource.fetch

    async def counted(source: HeadraceSource, *asked: Any, **more: Any) -> Any:
        process = PROCESS.get()
        found = await fetch(source, *asked, **more)
        assert process is not None
        name = process.node.cluster.name
        world.fetched[name] = world.fetched.get(name, 0) + sum(len(run) for each in found for run in each.records)
        return found

    with ExitStack() as patches:
        for patch in (
            mock.patch.object(StreamQueries, "retention_of", expire_after(LONG_TTL_S)),
            mock.patch.object(HeadraceSource, "fetch", counted),
            mock.patch("headrace.links.topics.topic_syncer.random", _Randoms(seeded)),
            mock.patch.dict(Puller.__init__.__kwdefaults__, randomness=seeded.random),
            mock.patch.object(Connection, "__hash__", lambda connection: zlib.crc32(connection.address.encode())),
            mock.patch.object(ChangesSubscribed, "__hash__", lambda subscribed: subscribed.number),
        ):
            patches.enter_context(patch)
        for version in range(5):
            generic_codec.prepare(ApiKey.API_VERSIONS, version)
        yield
