"""What a module declares for each API that it answers: key, versions and handler.

`dispatch` combines the declarations of all modules into one table, which routes requests and which ApiVersions reports.
Most APIs are an `Api`; those that have a codec of their own, or answer at once, are a `RawApi`.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.kafka.connection import Connection, Slot
from headrace.wire.api_keys import ApiKey, Versions
from headrace.wire.header import RequestHeader

Handler = Callable[[Any, Connection], Awaitable[Mapping[str, object]]]
"""Answers a decoded request of a connection with the fields that `wire.generic_codec.encode_response` takes."""

Start = Callable[[Connection, RequestHeader, memoryview, Slot], None]
"""Starts to answer a request from its undecoded bytes; may park the connection. Raises `HeadraceError` if the
connection must end."""


@dataclass(frozen=True, slots=True)
class Api:
    """An API that `wire.generic_codec` decodes and encodes. Its connection starts no other request before this one is
    answered."""

    key: ApiKey
    versions: Versions
    handler: Handler
    has_long_answers: bool = False
    """A short request may have a long answer, so the answer is encoded in an executor thread rather than on the
    loop."""


@dataclass(frozen=True, slots=True)
class RawApi:
    """An API that starts to answer from the request's bytes, with a codec of its own."""

    key: ApiKey
    versions: Versions
    start: Start
    answers_other_versions: bool = False
    """`start` also receives requests of versions outside `versions`."""
