"""Dispatch: which API answers a request, and the connections by which requests come.

Produce, Fetch and Metadata have codecs of their own and start by themselves; every other API is decoded by
`wire.generic_codec`, answered by an `async` handler with plain fields, and encoded by `wire.generic_codec`. While such
a handler runs, its connection starts nothing else.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from headrace.admin.admin_api import AdminApi
from headrace.base.admission import Admission, Place
from headrace.base.descriptor_plan import DescriptorPlan
from headrace.base.errors import Code, KafkaError
from headrace.base.levels import FEATURE, NEWEST, OLDEST
from headrace.base.runtime import Runtime
from headrace.kafka.answer_budget import AnswerBudget
from headrace.kafka.connection import Connection, Slot
from headrace.kafka.counters import Counters
from headrace.kafka.fetch import FetchApi
from headrace.kafka.handler import Handler
from headrace.kafka.idle_connections import IdleConnections
from headrace.kafka.metadata import MetadataApi
from headrace.kafka.produce import ProduceApi
from headrace.partitions.cluster_layout import NodeSettings
from headrace.store.view import ClusterView
from headrace.wire import generic_codec
from headrace.wire.api_keys import SUPPORTED, ApiKey
from headrace.wire.api_versions import Finalized
from headrace.wire.api_versions import encode_response as encode_api_versions
from headrace.wire.header import RequestHeader

LONG_BODY_BYTES: Final = 32 * 1024
LONG_ANSWERS: Final = frozenset(
    {ApiKey.DESCRIBE_CONFIGS, ApiKey.DESCRIBE_LOG_DIRS, ApiKey.LIST_GROUPS, ApiKey.DESCRIBE_PRODUCERS}
)
"""APIs whose short requests may have long answers."""


class Connections:
    """The connections of a node's clients: who may come, and who has been idle for too long."""

    def __init__(self, *, runtime: Runtime, settings: NodeSettings, descriptors: DescriptorPlan) -> None:
        self.open: dict[Connection, None] = {}
        """In the order in which they came, which is that in which they are closed."""
        self.answer_budget = AnswerBudget(self.open, time=runtime.loop.time)
        self.admission = Admission(
            kind="clients",
            most=(most := settings.max_connections or descriptors.clients),
            most_of_address=settings.max_connections_per_ip or max(most // 2, 1),
            descriptors=descriptors.limit - descriptors.reserve,
            time=runtime.loop.time,
            drop_idle=lambda: self.idle.drop_longest(),
        )
        self.idle = IdleConnections(
            self.open,
            runtime.loop,
            idle_s=settings.connections_max_idle_ms / 1000,
            scarce=lambda: self.admission.is_nearly_full,
        )

    def start(self) -> None:
        """Look for idle ones from now on."""
        self.idle.start()

    def end_all(self) -> None:
        """Close each behind what it has been answered."""
        for connection in list(self.open):
            connection.end()

    def close(self) -> None:
        """Look for idle ones no longer."""
        self.idle.close()


class Dispatcher:
    """Starts to answer whatever clients ask."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        view: ClusterView,
        connections: Connections,
        counters: Counters,
        produce: ProduceApi,
        fetch: FetchApi,
        metadata: MetadataApi,
        admin: AdminApi,
        others: Iterable[Mapping[ApiKey, Handler]],
    ) -> None:
        self._runtime = runtime
        self._view = view
        self._connections = connections
        self.produce = produce
        self.fetch = fetch
        self.metadata = metadata
        self._admin = admin
        self.counters = counters
        self.handlers = {key: handler for handlers in others for key, handler in handlers.items()}

    def handle(self, session: Connection, header: RequestHeader, request: memoryview, slot: Slot) -> None:
        """Start to answer one request. Raises `HeadraceError` where the connection must end."""
        self.counters.requests += 1
        key, version = header.api_key, header.api_version
        span = SUPPORTED.get(key)  # type: ignore[call-overload]  # an int that may be no ApiKey
        if span is None or not span[0] <= version <= span[1]:
            if key == ApiKey.API_VERSIONS:  # the answer says which are
                self._api_versions(session, header, request, slot)
                return
            raise KafkaError(Code.UNSUPPORTED_VERSION, f"api {key} version {version} is not supported")
        if key == ApiKey.PRODUCE:
            self.counters.bytes_in += len(request)
            self.produce.handle(session, header, request, slot)
        elif key == ApiKey.FETCH:
            self.fetch.handle(session, header, request, slot)
        elif key == ApiKey.METADATA:
            self.metadata.handle(session, header, request, slot)
        elif key == ApiKey.API_VERSIONS:
            self._api_versions(session, header, request, slot)
        elif key == ApiKey.HEADRACE_ADMIN:
            session.park(self._headrace_admin(session, bytes(request[header.body :]), slot))
        else:
            session.park(self._generic(session, ApiKey(key), version, request[header.body :], slot))

    def _api_versions(self, session: Connection, header: RequestHeader, request: memoryview, slot: Slot) -> None:
        low, high = SUPPORTED[ApiKey.API_VERSIONS]
        version = header.api_version
        if low <= version <= high and version >= 3:  # from 3 on clients name themselves
            if not generic_codec.is_prepared(ApiKey.API_VERSIONS, version):
                session.park(self._api_versions_prepared(session, header, request, slot))
                return
            asked = generic_codec.decode_request(ApiKey.API_VERSIONS, version, request[header.body :])
            name = generic_codec.field(asked, "client_software_name", "")
            session.software = f"{name} {generic_codec.field(asked, 'client_software_version', '')}".strip()
        told = self._view.features
        feature = Finalized(FEATURE, told.level, OLDEST, NEWEST, told.epoch)
        slot.answer([encode_api_versions(version, feature)])

    async def _api_versions_prepared(
        self, session: Connection, header: RequestHeader, request: memoryview, slot: Slot
    ) -> None:
        await self._runtime.loop.run_in_executor(
            self._runtime.executor, generic_codec.prepare, ApiKey.API_VERSIONS, header.api_version
        )
        self._api_versions(session, header, request, slot)

    async def _generic(self, session: Connection, key: ApiKey, version: int, body: memoryview, slot: Slot) -> None:
        if not generic_codec.is_prepared(key, version):
            await self._runtime.loop.run_in_executor(self._runtime.executor, generic_codec.prepare, key, version)
        long = len(body) > LONG_BODY_BYTES
        if long:  # a thread shares the processor with the loop, a long step on the loop stalls it
            asked = await self._runtime.loop.run_in_executor(
                self._runtime.executor, generic_codec.decode_request, key, version, body
            )
        else:
            asked = generic_codec.decode_request(key, version, body)
        fields = await self.handlers[key](asked, session)
        if long or key in LONG_ANSWERS:
            answer = await self._runtime.loop.run_in_executor(
                self._runtime.executor, generic_codec.encode_response, key, version, fields
            )
        else:
            answer = generic_codec.encode_response(key, version, fields)
        slot.answer([answer])

    async def _headrace_admin(self, session: Connection, body: bytes, slot: Slot) -> None:
        slot.answer([await self._admin.handle(body, session)])

    def accepted(self, place: Place, *, listener: str) -> Connection:
        """The protocol of a connection that has a place."""
        return Connection(self, listener=listener, place=place)

    def connected(self, session: Connection) -> None:
        """A client connected."""
        self._connections.open[session] = None
        self.counters.connections += 1

    def disconnected(self, session: Connection) -> None:
        """A client is gone."""
        self._connections.open.pop(session, None)
