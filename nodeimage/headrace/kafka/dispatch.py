"""Dispatch of requests to the APIs that answer them, and the set of client connections.

The API modules declare what they answer (`kafka.api`). An API with a codec of its own starts from the raw request;
every other request is decoded by `wire.generic_codec`, answered by an `async` handler with plain fields, and encoded by
`wire.generic_codec`. While such a handler runs, its connection starts nothing else.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Final

from headrace.base.admission import Admission, Place
from headrace.base.descriptor_plan import DescriptorPlan
from headrace.base.errors import Code, KafkaError
from headrace.base.runtime import Runtime
from headrace.kafka.answer_budget import AnswerBudget
from headrace.kafka.api import Api, RawApi, Start
from headrace.kafka.connection import Connection, Identify, Slot
from headrace.kafka.counters import Counters
from headrace.kafka.idle_connections import IdleConnections
from headrace.kafka.throttle import Throttle
from headrace.kafka.traced_calls import TRACED, span_attributes_of
from headrace.metrics.requests import ApiTimes, PhasedTimes, ProduceTimes
from headrace.partitions.cluster_layout import NodeSettings
from headrace.tracing.admin_call import AdminCall, admin_call
from headrace.tracing.tracer import NO_TRACER, Tracer
from headrace.wire import generic_codec
from headrace.wire.api_keys import ApiKey
from headrace.wire.header import RequestHeader

LONG_BODY_BYTES: Final = 32 * 1024
MAX_COUNTED: Final = 100
"""Entries of a list in an answer whose error codes are counted; answers may be long."""
_ANY_VERSION: Final = (-(1 << 15), (1 << 15) - 1)


class Connections:
    """The client connections of a node: their admission, and the closing of idle ones."""

    def __init__(self, *, runtime: Runtime, settings: NodeSettings, descriptors: DescriptorPlan) -> None:
        self.open: dict[Connection, None] = {}
        """The open connections in the order in which they were accepted, which is the order in which they are
        closed."""
        self.answer_budget = AnswerBudget(self.open, time=runtime.loop.time)
        self.admission = Admission(
            kind="clients",
            most=(most := settings.max_connections or descriptors.clients),
            most_of_address=settings.max_connections_per_ip or max(most // 2, 1),
            descriptors=descriptors.limit - descriptors.reserve,
            time=runtime.awake.time,
            drop_idle=lambda: self.idle.drop_longest(),
        )
        self.idle = IdleConnections(
            self.open,
            runtime.awake,
            idle_s=settings.connections_max_idle_ms / 1000,
            scarce=lambda: self.admission.is_nearly_full,
        )

    def start(self) -> None:
        """Start to close idle connections."""
        self.idle.start()

    def end_all(self) -> None:
        """Close each connection once its finished answers are written."""
        for connection in list(self.open):
            connection.end()

    def close(self) -> None:
        """Stop closing idle connections."""
        self.idle.close()


class Dispatcher:
    """Starts to answer the requests of all connections."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        connections: Connections,
        counters: Counters,
        throttle: Throttle,
        apis: Iterable[Api | RawApi] = (),
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """Raises ValueError if two of `apis` have the same key."""
        self._tracer = tracer
        self._traced: frozenset[ApiKey] = TRACED if tracer.is_on else frozenset()
        self._runtime = runtime
        self._connections = connections
        self._counters = counters
        self._throttle = throttle
        self.apis: dict[ApiKey, Api | RawApi] = {}
        """All APIs that are answered, by key."""
        self.times: dict[str, ApiTimes] = {}
        """The times that answers take, by the API's name."""
        self._starts: dict[int, tuple[int, int, Start, ApiTimes]] = {}
        """By key, as a plain int: the lowest and the highest version, the function that starts to answer, and the API's
        times."""
        self.add(apis)

    def add(self, apis: Iterable[Api | RawApi]) -> None:
        """Also answer these APIs from now on. Raises ValueError for an API that is already declared."""
        for api in apis:
            if api.key in self.apis:
                raise ValueError(f"{api.key.name} is declared twice")
            self.apis[api.key] = api
            self._starts[int(api.key)] = self._start_of(api)

    def _start_of(self, api: Api | RawApi) -> tuple[int, int, Start, ApiTimes]:
        times = self.times[name_of(api.key)] = _times_of(api.key)
        if isinstance(api, Api):
            return *api.versions, partial(self._start_generic, api), times
        return *(_ANY_VERSION if api.answers_other_versions else api.versions), api.start, times

    def handle(self, session: Connection, header: RequestHeader, request: memoryview, slot: Slot) -> None:
        """Start to answer one request. Raises `HeadraceError` if the connection must end."""
        self._counters.requests += 1
        known = self._starts.get(header.api_key)
        if known is not None:
            lowest, highest, start, times = known
            if lowest <= header.api_version <= highest:
                times.left -= 1
                if times.left <= 0:
                    slot.timed = times.begin(session.waiting_since)
                if self._throttle.is_on:
                    self._throttle.start(start, session, header, request, slot)
                else:
                    start(session, header, request, slot)
                return
        self.failed(header.api_key, Code.UNSUPPORTED_VERSION)
        raise KafkaError(
            Code.UNSUPPORTED_VERSION, f"api {header.api_key} version {header.api_version} is not supported"
        )

    def failed(self, api_key: int, code: int) -> None:
        """See Handler."""
        if (known := self._starts.get(api_key)) is not None:
            known[3].failed(code)

    def _start_generic(
        self, api: Api, session: Connection, header: RequestHeader, request: memoryview, slot: Slot
    ) -> None:
        answer = partial(
            self._trace if api.key in self._traced else self._answer,
            api,
            session,
            header.api_version,
            request[header.body :],
            slot,
        )
        session.park(self._throttle.timed(session, answer) if self._throttle.is_on else answer())

    async def _trace(self, api: Api, session: Connection, version: int, body: memoryview, slot: Slot) -> None:
        """Answer as `_answer` does, within a span."""
        with admin_call(self._tracer, name_of(api.key), time=self._runtime.loop.time) as call:
            await self._answer(api, session, version, body, slot, call)

    async def _answer(
        self,
        api: Api,
        session: Connection,
        version: int,
        body: memoryview,
        slot: Slot,
        call: AdminCall | None = None,
    ) -> None:
        key = api.key
        if not generic_codec.is_prepared(key, version):
            await self._runtime.loop.run_in_executor(self._runtime.executor, generic_codec.prepare, key, version)
        long = len(body) > LONG_BODY_BYTES
        if long:  # a thread shares the processor with the loop; a long step on the loop would stall it
            asked = await self._runtime.loop.run_in_executor(
                self._runtime.executor, generic_codec.decode_request, key, version, body
            )
        else:
            asked = generic_codec.decode_request(key, version, body)
        if call is not None:
            call.attributes = span_attributes_of(asked, session.default_stream)
        fields = await api.handler(asked, session)
        for code in codes_of(fields):
            slot.failed(code)
            if call is not None:
                call.failed(code)
        if slot.throttle_ms:
            fields = {**fields, "throttle_time": slot.throttle_ms}
        if long or api.has_long_answers:
            answer = await self._runtime.loop.run_in_executor(
                self._runtime.executor, generic_codec.encode_response, key, version, fields
            )
        else:
            answer = generic_codec.encode_response(key, version, fields)
        slot.answer([answer])

    def accepted(
        self, place: Place, *, listener: str, default_stream: str, identify: Identify | None = None
    ) -> Connection:
        """The protocol object for a connection that has a place."""
        return Connection(self, listener=listener, default_stream=default_stream, place=place, identify=identify)

    def connected(self, session: Connection) -> None:
        """A client connected."""
        self._connections.open[session] = None
        self._counters.connections += 1

    def disconnected(self, session: Connection) -> None:
        """A client is gone."""
        self._connections.open.pop(session, None)


def _times_of(key: ApiKey) -> ApiTimes:
    match key:
        case ApiKey.PRODUCE:
            return ProduceTimes()
        case ApiKey.FETCH:
            return PhasedTimes()
        case _:
            return ApiTimes()


def name_of(key: ApiKey) -> str:
    """An API's name as Kafka spells it."""
    return "".join(word.capitalize() for word in key.name.split("_"))


def codes_of(fields: Mapping[str, object]) -> Iterator[int]:
    """The error codes in an answer of the generic codec; of a long list, those in its first `MAX_COUNTED` entries."""
    code = fields.get("error_code")
    if code and isinstance(code, int):
        yield code
    for value in fields.values():
        if isinstance(value, list | tuple):
            for each in islice(value, MAX_COUNTED):
                if isinstance(each, Mapping):
                    yield from codes_of(each)
