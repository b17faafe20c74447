"""The HTTP port's connections: few at a time, and none that keeps others out.

aiohttp waits for a first request for good, and for a whole one as long; the kubelet's probes come through this port. So
its connections have places (admission.py): new ones until their first request is whole, then idle ones between two.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from aiohttp import web
from aiohttp.typedefs import Handler

from headrace.base.admission import Admission, Place
from headrace.base.descriptor_plan import DescriptorPlan


class HttpConnections:
    """Of one port."""

    def __init__(self, plan: DescriptorPlan) -> None:
        self.admission = Admission(
            kind="http",
            most=plan.http,
            most_of_address=plan.limit,
            descriptors=plan.limit - plan.reserve // 4,
            time=asyncio.get_running_loop().time,
            drop_idle=self._drop_longest_idle,
        )
        self._idle: dict[asyncio.BaseTransport, _Placed] = {}
        """Those that wait for another request, the longest idle first."""
        self._placed: dict[asyncio.BaseTransport, _Placed] = {}

    def factory(self, server: Callable[[], asyncio.BaseProtocol]) -> Callable[[Place], asyncio.BaseProtocol]:
        """Of an acceptor, for the protocols of aiohttp's `server`."""
        return lambda place: _Placed(cast(asyncio.Protocol, server()), place, self._placed, self._idle)

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Of the application: a request has come, whole but for its body."""
        transport = request.transport
        placed = self._placed.get(transport) if transport is not None else None
        if transport is None or placed is None:
            return await handler(request)
        placed.place.proven()
        self._idle.pop(transport, None)
        try:
            return await handler(request)
        finally:
            if transport in self._placed:
                self._idle[transport] = placed

    def _drop_longest_idle(self) -> bool:
        for transport, placed in self._idle.items():
            del self._idle[transport]
            placed.drop()
            return True
        return False


class _Placed(asyncio.Protocol):
    """One connection: aiohttp's protocol, whose place is given back at its end."""

    def __init__(
        self,
        inner: asyncio.Protocol,
        place: Place,
        placed: dict[asyncio.BaseTransport, "_Placed"],
        idle: dict[asyncio.BaseTransport, "_Placed"],
    ) -> None:
        self.place = place
        self._inner = inner
        self._all = placed
        self._idle = idle
        self._transport: asyncio.Transport | None = None
        self._dropped = False
        place.occupy(self.drop)

    def drop(self) -> None:
        """End it."""
        self._dropped = True
        self.place.leave()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)
        self._all[transport] = self
        self._inner.connection_made(transport)
        if self._dropped:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self.place.leave()
        if self._transport is not None:
            self._all.pop(self._transport, None)
            self._idle.pop(self._transport, None)
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """See asyncio.Protocol."""
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._inner.resume_writing()
