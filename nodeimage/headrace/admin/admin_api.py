"""Headrace's own admin calls: what the command line asks a node, over the Kafka port (API key 24000).

    request  = 0x00, msgpack [method, {parameter: value}]
    response = msgpack {"error": Kafka code, "message": text or null, "result": anything}

Responsible for the envelope and the table of methods: parameters are checked against a struct per method (an unknown
one, or one of a wrong type, is an INVALID_REQUEST that names it), errors become codes with a line that says what to
do. The methods are those of the families: `streams`, `topics`, `group_lag`, `node_status`, `cluster`, `nodes`,
`volumes`, `containers`, `feature_levels`, and those that links bring.

msgspec must have learnt what methods take before `convert` is given it, which it does not do safely in two threads: so
each module of methods makes decoders of its classes as it is loaded.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import structlog

from headrace.base.errors import Code, HeadraceError, KafkaError
from headrace.partitions.admin_params import Methods, Params
from headrace.partitions.caller import Caller
from headrace.wire.admin_call import decode_admin_request, encode_admin_response

log = structlog.get_logger(__name__)


class AdminApi:
    """Answers Headrace's own admin calls, by a table of methods."""

    def __init__(self, methods: Iterable[Methods]) -> None:
        self._methods: dict[str, _Method] = {}
        for table in methods:
            self.add(table)

    def add(self, methods: Methods, *, of_caller: bool = False) -> None:
        """Answer these too: those of a part that is made later than this. msgspec has learnt what they take.

        `of_caller`: the answer differs with who asks, so that each is given the `Caller`, too.
        """
        self._methods.update((name, _Method(*each, of_caller)) for name, each in methods.items())

    @property
    def names(self) -> Collection[str]:
        """Of the methods that there are."""
        return self._methods.keys()

    async def handle(self, body: bytes, caller: Caller) -> bytes:
        """The response's body. Raises MalformedRequest for bytes that are no admin request."""
        name, given = decode_admin_request(body)
        try:
            return encode_admin_response(await self.call(name, given, caller))
        except HeadraceError as error:
            return encode_admin_response(None, error=int(error.code), message=str(error))
        except Exception:
            log.exception("admin call failed", method=name, peer=caller.peer)
            return encode_admin_response(
                None, error=int(Code.UNKNOWN_SERVER_ERROR), message=f"{name} failed; the node's log says why"
            )

    async def call(self, name: str, given: Mapping[str, Any], caller: Caller) -> object:
        """What a method answers. Raises HeadraceError, KafkaError(INVALID_REQUEST) for a call that cannot be."""
        method = self._methods.get(name)
        if method is None:
            known = ", ".join(self._methods)
            raise KafkaError(Code.INVALID_REQUEST, f"there is no method {name[:100]!r}; there are {known}")
        try:
            params = msgspec.convert(given, method.params)
        except msgspec.ValidationError as error:
            raise KafkaError(Code.INVALID_REQUEST, f"{name}: {error}") from None
        return await (method.run(params, caller) if method.of_caller else method.run(params))


class _Method(NamedTuple):
    """A method: what it takes, and what runs it."""

    params: type[Params]
    run: Callable[..., Awaitable[object]]
    of_caller: bool = False
    """It is told who calls."""
