"""Headrace's own admin calls, which the command line sends to a node over the Kafka port (API key 24000).

    request  = 0x00, msgpack [method, {parameter: value}]
    response = msgpack {"error": Kafka code, "message": text or null, "result": anything}

Responsible for the envelope and the table of methods: parameters are checked against a struct per method (an unknown
parameter, or one of a wrong type, is an INVALID_REQUEST that names it), the caller must have the right that the method
declares (partitions.admin_rights), errors become codes with a line that says what to do. The methods are those of the
modules `streams`, `topics`, `group_lag`, `node_status`, `cluster`, `nodes`, `volumes`, `containers`,
`feature_levels`, `users`, `access`, `cluster_security`, and those of links.

Invariant: nothing runs before its right is checked, and adding a method that declares no right fails, so that none can
be forgotten. While security is off every caller has every right.

msgspec builds what it needs for a type at its first use, which is not safe in two threads: so each module of methods
builds decoders of its parameter classes as it is loaded.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import structlog

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.catalog.names import full
from headrace.partitions.admin_params import Method, Methods
from headrace.partitions.admin_rights import CLUSTER_ADMIN, unknown_to
from headrace.partitions.authorizer import Authorizer
from headrace.partitions.caller import Caller
from headrace.tracing.admin_call import admin_call
from headrace.tracing.spans import Value
from headrace.tracing.tracer import NO_TRACER, Tracer
from headrace.wire.admin_call import encode_admin_response, split_admin_request

log = structlog.get_logger(__name__)


class _Named(msgspec.Struct):
    """The parameters that may name a stream or topic; all others are ignored."""

    path: str | None = None
    stream: str | None = None
    topic: str | None = None


_names = msgspec.msgpack.Decoder(_Named)


class AdminApi:
    """Answers Headrace's own admin calls, by a table of methods."""

    def __init__(self, *, authorizer: Authorizer, tracer: Tracer = NO_TRACER) -> None:
        self._authorizer = authorizer
        self._tracer = tracer
        self._methods: dict[str, Method] = {}
        self._decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {}
        """Decoders of the methods' parameters, by method name."""

    def add(self, methods: Methods) -> None:
        """Answer these methods too. Decoders of their parameter classes must have been built before.

        Raises ValueError for a method that declares no right.
        """
        for name, method in methods.items():
            if not isinstance(method, Method) or not hasattr(method.right, "check"):
                raise ValueError(f"the admin method {name} declares no right: say in its entry who may call it")
            self._methods[name] = method
            self._decoders[name] = msgspec.msgpack.Decoder(method.params)

    @property
    def methods(self) -> Methods:
        """All methods, by name."""
        return self._methods

    async def handle(self, body: bytes, caller: Caller, *, failed: Callable[[int], None] = lambda _code: None) -> bytes:
        """The response's body. `failed` is called with the code of an error. Raises MalformedRequest for bytes that are
        not an admin request.
        """
        name, given = split_admin_request(body)
        method = self._methods.get(name)
        if not self._tracer.is_on or (method is not None and not method.is_traced):
            return await self._answer(name, given, caller, failed)
        shown = "unknown" if method is None else name
        with admin_call(self._tracer, shown, time=asyncio.get_running_loop().time) as call:
            call.attributes = _named(given, caller.default_stream)

            def noted(code: int) -> None:
                call.failed(code)
                failed(code)

            return await self._answer(name, given, caller, noted)

    async def _answer(self, name: str, given: msgspec.Raw, caller: Caller, failed: Callable[[int], None]) -> bytes:
        try:
            return encode_admin_response(await self.call(name, given, caller))
        except HeadraceError as error:
            code, message = int(error.code), str(error)
        except Exception:
            log.exception("admin call failed", method=name, peer=caller.peer)
            code, message = int(Code.UNKNOWN_SERVER_ERROR), f"{name} failed; the node's log says why"
        failed(code)
        return encode_admin_response(None, error=code, message=message)

    async def call(self, name: str, given: Mapping[str, Any] | msgspec.Raw, caller: Caller) -> object:
        """Run a method and return its result. `given`: its parameters, or their encoded bytes.

        Raises HeadraceError; KafkaError(INVALID_REQUEST) for an unknown method or wrong parameters, and one of Kafka's
        authorization errors for a caller without the right.
        """
        may = self._authorizer
        method = self._methods.get(name)
        if method is None:
            if may.is_on and not CLUSTER_ADMIN.is_ever_had(caller, may):
                raise unknown_to(caller, may, name)
            known = ", ".join(self._methods)
            raise KafkaError(Code.INVALID_REQUEST, f"there is no method {name[:100]!r}; there are {known}")
        try:
            params = self._params(name, method, given)
        except msgspec.ValidationError as error:
            if may.is_on and not method.right.is_ever_had(caller, may):
                raise unknown_to(caller, may, name) from None
            raise KafkaError(Code.INVALID_REQUEST, f"{name}: {error}") from None
        await method.right.check(params, caller, may, method=name)
        return await (method.run(params, caller) if method.of_caller else method.run(params))

    def _params(self, name: str, method: Method, given: Mapping[str, Any] | msgspec.Raw) -> Any:
        if not isinstance(given, msgspec.Raw):
            return msgspec.convert(given, method.params)
        try:
            return self._decoders[name].decode(given)
        except msgspec.ValidationError:
            raise
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise KafkaError(Code.INVALID_REQUEST, f"{name[:100]}: the parameters are not msgpack: {error}") from error


def _named(given: msgspec.Raw, default_stream: str) -> dict[str, Value | None]:
    """The span attributes for the stream or topic of a call; empty if the parameters cannot be read."""
    try:
        found = _names.decode(given)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return {}
    path = found.path or found.stream if found.topic is None else full(found.topic, default_stream)
    return {} if path is None else {"headrace.path": path, "headrace.paths": 1}
